"""Events as lines for people. Names and reasons come from strangers: whatever leaves here is printable."""

from collections.abc import Iterator, Mapping

from troth.errors import printable
from troth.events.kinds import Began, Ended, Event, Noted, Stepped
from troth.watch.health import metrics_in_words


def sentences(event: Event) -> Iterator[str]:
    """Whatever about an event is worth a line of its own."""
    yield from map(printable, _sentences(event))


def _sentences(event: Event) -> Iterator[str]:
    match event:
        case Began():
            liars = "" if event.withstands is None else f", of whom {event.withstands} may lie"
            yield f"{event.name or event.task or 'a run'}: {event.of} steps with {len(event.peers)} peers{liars}"
        case Noted():
            yield event.text
        case Ended():
            yield f"the end: {event.text or event.how}"
        case Stepped():
            yield from (f"step {event.step}: {one}" for one in _news(event))


def _news(event: Stepped) -> Iterator[str]:
    if event.restarted:
        yield "the run goes on, after too many had stopped"
    if not event.moved and not event.closing:
        yield "the model did not move"
    proved = {trial.banned for trial in event.trials if trial.banned}
    for trial in event.trials:
        who = f"{trial.accuser} accused {trial.target}" if trial.accuser else f"{trial.target} was seen to lie"
        ending = (
            f"{trial.banned} is banned"
            if trial.banned
            else "dismissed"
            if trial.verdict == "dismissed"
            else trial.verdict
        )
        yield f"{who} ({trial.kind} of step {trial.step}): {ending}"
    yield from (f"{ban.peer} is banned: {ban.reason}" for ban in event.banned if ban.peer not in proved)
    yield from (f"{name} is absent, and no longer a member" for name in event.left)
    yield from (f"{name} is expelled" for name in event.expelled)
    yield from (f"{one.peer} is back" for one in event.returned)
    yield from (f"{name} joined, after its probation" for name in event.joined)
    yield from event.news
    if event.closing:
        yield "the last step is audited, and the run is closed"


def line(event: Stepped, metrics: Mapping[str, float]) -> str:
    """How the run is doing after a step."""
    parts = [
        f"step {event.updates}/{event.of}",
        *([f"batch loss {event.loss:.3f}"] if event.loss is not None else []),
        *metrics_in_words(metrics),
        f"peers {event.members}",
        *([f"withstands {event.withstands}"] if event.withstands is not None else []),
        *([f"{event.seconds:.2f} s a step"] if event.seconds is not None else []),
        *(["under attack"] if event.attacked else []),
    ]
    return printable("  ".join(parts))
