"""Trace log of a world: one line an event, with its time, the peer, what it did, the slot, and what was in it.

Everything is seen from outside: packets as the network takes them, and the calls that each peer makes of its channel.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec

from troth.crypto import PeerId, Slot, blob_digest, tagged_hash
from troth.errors import printable
from troth.protocol.core.channel import AttemptView, Channel, Exchange, ForwardingChannel, Noticed, Said
from troth.protocol.core.records import decode_record
from troth.protocol.core.run import CannotGoOnError
from troth.protocol.wire.frames import Packet, Value
from troth.protocol.wire.messages import Malformed, Message, Phase
from troth.protocol.wire.phases import decode
from troth.workshop.chaos.judge import play_on
from troth.workshop.chaos.plan import Plan
from troth.workshop.chaos.world import Stage, World

LEGEND = "time who what step.attempt.phase …; `at`: when a packet arrives, which may be never or more than once"
_LONGEST = 2000  # characters about one event: liars make things up
_DIGEST_BYTES = 32
_SIGNATURE_BYTES = 64


class TraceLog:
    """`play` the plan, then read the `lines`, also where playing raised."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._stage = Stage(plan, self.watch, self.wrap)
        self._events: list[tuple[float, str]] = []
        self._lies: dict[PeerId, dict[str, int]] = {}  # lies of each liar that the log has

    def play(self) -> World:
        """Run the plan to its end."""
        return play_on(self._stage)

    def lines(self) -> Iterator[str]:
        """The plan, then all events in order."""
        yield f"seed {self._plan.seed}: {self._plan}"
        yield LEGEND
        for _, line in sorted([*self._events, *self._endings()], key=lambda event: event[0]):
            yield line

    def watch(self, now: float, sender: PeerId, to: PeerId, packet: Packet, delays: Sequence[float]) -> None:
        """Log a packet that goes onto the network."""
        self._log_lies(sender)
        frame, slot = packet.frame, packet.slot
        arrives = ",".join(f"{now + delay:.3f}" for delay in delays) or "never"
        detail = self._text(frame)
        if isinstance(frame, Value):
            payload = frame.envelope.payload
            detail = f"Value({self._text(payload)}) {self._text(_decoded(slot, payload))}"
        self.log(sender, "sent", slot, f"to={self._text(to)} at={arrives} {detail}")

    def wrap(self, peer: PeerId, channel: Channel, noticed: Noticed) -> Channel:
        """Log the calls of a peer's channel, of which it opens several if it comes back."""
        self.log(peer, "opened", None, f"key={peer.hex()[:8]}")
        return _TracedChannel(channel, noticed, peer, self)

    def log(self, peer: PeerId, what: str, slot: Slot | None, detail: str) -> None:
        """Log one event at the present moment."""
        time = self._stage.time.now
        self._events.append((time, self._line(time, self._text(peer), what, slot, detail)))

    def decided(self, peer: PeerId, slot: Slot, said: Said, members: Set[PeerId], double: Set[PeerId]) -> None:
        """Log what an announcement gave: `values` differ where peers were told different things."""
        values = tagged_hash("trace", *(part for one in sorted(said) for part in (one, said[one].envelope.payload)))
        found = {"said": said.keys(), "silent": members - said.keys() - double, "equivocated": double}
        shown = _spaced(f"{name}={self._text(peers)}" for name, peers in found.items())
        self.log(peer, "decided", slot, f"{shown} values={values.hex()[:8]}")

    def received(self, peer: PeerId, slot: Slot, blobs: Exchange[Any], came: Mapping[Any, Any]) -> None:
        """Log which blobs came of an exchange."""
        keys = {key: one.keys() if isinstance(one, Mapping) else "" for key, one in came.items()}
        self.log(peer, "received", slot, f"{type(blobs).__name__} {self._text(keys)}")

    def _log_lies(self, peer: PeerId) -> None:
        """Log what a liar's link did since its last packet: it comes before what it sent instead, if that is anything."""
        counts = self._stage.world.lies_of.get(peer, {})
        for lie, count in counts.items():
            if count > self._lies.setdefault(peer, {}).get(lie, 0):
                self._lies[peer][lie] = count
                self.log(peer, "lied", None, lie)

    def _endings(self) -> Iterator[tuple[float, str]]:
        """The records of honest peers, each when the first of them had it, and what no packet follows."""
        world, now = self._stage.world, self._stage.time.now
        for (step, _), records in world.written.items():
            time = world.step_ends.get(step, now)
            for record, numbers in records.items():
                who, detail = ",".join(map(str, sorted(numbers))), self._text(decode_record(record))
                yield time, self._line(time, who, "wrote", None, detail)
        for peer, why in self._stage.time.stopped.items():
            yield now, self._line(now, self._text(peer), "gave-up", None, str(why))
        yield now, self._line(now, "-", "end", None, "")

    def _line(self, time: float, who: str, what: str, slot: Slot | None, detail: str) -> str:
        where = "-" if slot is None else f"{slot.step}.{slot.attempt}.{_phase(slot)}"
        line = printable(f"{time:9.3f} {who:>3} {what:<8} {where:<12} {detail}".rstrip())
        return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"

    def _text(self, value: object) -> str:
        """A value in short: peers by their numbers, and of structures the fields that say something."""
        match value:
            case bytes() if value in self._stage.world.numbers:
                return str(self._stage.world.numbers[PeerId(value)])
            case bytes() if len(value) == _DIGEST_BYTES:
                return value.hex()[:8]
            case bytes() if len(value) == _SIGNATURE_BYTES:
                return "signed"
            case bytes() | memoryview():
                return f"{blob_digest(value).hex()[:8]}({len(value)}B)"
            case Enum():
                return value.name.lower()
            case Mapping():
                return f"{{{_spaced(f'{self._text(key)}:{self._text(one)}' for key, one in value.items())}}}"
            case str():
                return value
            case Collection():
                return f"[{_spaced(sorted(map(self._text, value), key=lambda text: (len(text), text)))}]"
            case msgspec.Struct():
                return self._struct(value, value.__struct_fields__)
            case _ if is_dataclass(value):
                return self._struct(value, [field.name for field in fields(value)])
            case _:
                return str(value)

    def _struct(self, value: object, names: Sequence[str]) -> str:
        shown = ((name, getattr(value, name)) for name in names)
        inside = _spaced(f"{name}={self._text(one)}" for name, one in shown if one not in ((), {}, None))
        return f"{type(value).__name__}({inside})"


class _TracedChannel(ForwardingChannel):
    """Around a peer's channel: logs what comes of each call."""

    def __init__(self, channel: Channel, noticed: Noticed, peer: PeerId, log: TraceLog) -> None:
        super().__init__(channel)
        self._noticed = noticed
        self._peer = peer
        self._log = log

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        with self._stopping(slot):
            said = await super().announce(slot, message, view)
        double = {peer for peer, (where, *_) in self._noticed.equivocations(slot.step).items() if where == slot}
        self._log.decided(self._peer, slot, said, view.members, double)
        return said

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        with self._stopping(slot):
            came = await super().exchange(slot, blobs, view)
        self._log.received(self._peer, slot, blobs, came)
        return came

    @contextmanager
    def _stopping(self, slot: Slot) -> Iterator[None]:
        try:
            yield
        except CannotGoOnError as why:
            self._log.log(self._peer, "stopped", slot, str(why))
            raise


def _decoded(slot: Slot, payload: bytes) -> Message | Malformed:
    try:
        return decode(Phase(slot.phase), payload)
    except (KeyError, ValueError):  # nothing is announced in such a phase
        return Malformed("for no phase that has announcements")


def _phase(slot: Slot) -> str:
    return Phase(slot.phase).name.lower() if slot.phase in set(Phase) else str(slot.phase)


def _spaced(texts: Iterable[str]) -> str:
    return " ".join(texts)
