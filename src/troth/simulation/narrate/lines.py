"""Lines of a timeline: events as text, where peers that did the same at the same time share a line."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.records import encode_record
from troth.protocol.wire.frames import PartSent
from troth.simulation.chaos.world import World
from troth.simulation.narrate.events import Burst, Event, Finding, Headline
from troth.simulation.narrate.phrases import Phrases, by_number, spaced, where

LEGEND = "→ sent   ! with a lie   • did or found   = is recorded; LATE is later than the protocol assumes"
_LATE_S = Timeouts().delta  # a longer delay breaks what the protocol assumes
_LONGEST = 100  # characters about one burst: liars make things up


def event_lines(events: Sequence[Event], world: World | None, phrases: Phrases) -> Iterator[str]:
    """All events in order, each record after the first signatures of it; without a world if playing it raised."""
    decided: dict[object, set[bytes]] = defaultdict(set)
    for event in events:
        if isinstance(event, Finding):
            decided[event.slot] |= {event.values} - {b""}
    recorded: set[int] = set()
    for line in _merged(events):
        if isinstance(line, str):
            yield line
            continue
        yield _finding_line(line, several=len(decided[line.slot]) > 1)
        if line.record is not None and line.record not in recorded and world is not None:
            yield from _record_lines(world, line.record, phrases)
        recorded |= {line.record} if line.record is not None else set()
    if world is not None:
        ended = {step for outcomes in world.outcomes.values() for step in outcomes}
        for step in sorted(ended - recorded):  # no step followed, so nobody signed its record
            yield from _record_lines(world, step, phrases)
        yield f"{world.seconds:9.3f}  the end"


def _merged(events: Sequence[Event]) -> Iterator[str | Finding]:
    """In order; peers that send the same at the same time share a line."""
    senders: dict[tuple[str, ...], list[int]] = {}
    rows: list[tuple[str, ...] | Finding | Headline] = []
    for event in events:
        if isinstance(event, Burst):
            row = _burst_row(event)
            if row not in senders:
                senders[row] = []
                rows.append(row)
            senders[row].append(event.sender)
        else:
            rows.append(event)
    for line in rows:
        if isinstance(line, Headline):
            yield ""
            yield f"── {line.text}"
        elif isinstance(line, Finding):
            yield line
        else:
            time, mark, to, kind, slot, rest = line
            path = f"{spaced(set(senders[line]))} → {to}"
            yield f"{time}  {mark} {path:<18} {kind:<12} {slot:<24} {rest}".rstrip()


def _finding_line(finding: Finding, *, several: bool) -> str:
    """`several`: peers decided differently for this slot, so the line says which values."""
    values = f" [values {finding.values.hex()[:6]}]" if several and finding.values else ""
    last = max(finding.peers.values())
    until = f", the last at {last:.3f}" if last - finding.time >= 0.0005 else ""
    return f"{finding.time:9.3f}  • {spaced(finding.peers)} {finding.text}{values}{until}"


def _record_lines(world: World, step: int, phrases: Phrases) -> Iterator[str]:
    """The record as honest peers hold it: once, unless they differ."""
    ended = {number: outcomes[step].record for number, outcomes in world.outcomes.items() if step in outcomes}
    holders: dict[bytes, list[int]] = defaultdict(list)
    for number, record in ended.items():
        holders[encode_record(record)].append(number)
    for numbers in holders.values():
        whose = f" as {spaced(numbers)} have it" if len(holders) > 1 else ""
        first, *more = phrases.record(ended[numbers[0]])
        yield f"{'':9}  = record of step {step}{whose}: {first}"
        yield from (f"{'':9}  =   {text}" for text in more)


def _burst_row(burst: Burst) -> tuple[str, ...]:
    """Time, mark, receivers, kind, slot and the rest: everything but the sender."""
    return (
        f"{burst.time:9.3f}",
        "!" if burst.lies else " ",
        _receivers(burst),
        burst.kind,
        where(burst.slot),
        "; ".join(filter(None, (_about_text(burst), *_arrival_texts(burst), *_lie_texts(burst)))),
    )


def _receivers(burst: Burst) -> str:
    to = set(burst.to)
    missing = burst.others - to
    if not to:
        return "nobody"
    if to >= burst.others and len(burst.others) > 1:  # and observers beside them
        return " and ".join(filter(None, ("all", spaced(to - burst.others))))
    if to < burst.others and len(missing) <= 2 < len(to):
        return f"all but {spaced(missing)}"
    return spaced(to)


def _about_text(burst: Burst) -> str:
    groups = [
        " ".join(filter(None, (before, *sorted(items, key=by_number), after)))
        for (before, after), items in burst.about.items()
        if burst.kind != PartSent.__name__ or len(items) <= 2  # else each owner gets its own part, as always
    ]
    text = "".join(character if character.isprintable() else "?" for character in ", ".join(filter(None, groups)))
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _arrival_texts(burst: Burst) -> Iterator[str]:
    first = {number: [min(times) for times in frames if times] for number, frames in burst.to.items()}
    in_time = [time for times in first.values() for time in times if time - burst.time <= _LATE_S]
    late = {number: max(times) for number, times in first.items() if times and max(times) - burst.time > _LATE_S}
    lost = [number for number, frames in burst.to.items() if not all(frames)]
    twice = [number for number, frames in burst.to.items() if any(len(times) > 1 for times in frames)]
    if in_time:
        yield f"arrives by {max(in_time):.3f}"
    if late:
        yield f"LATE to {spaced(late)}, by {max(late.values()):.3f}"
    if lost:
        yield f"LOST to {spaced(lost)}"
    if twice:
        yield f"twice to {spaced(twice)}"


def _lie_texts(burst: Burst) -> Iterator[str]:
    for lie, about in sorted(burst.lies.items()):
        yield f"! {lie}" + ("" if about == set(burst.to) else f" ({spaced(about)})")
