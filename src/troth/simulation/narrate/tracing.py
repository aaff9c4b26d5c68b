"""Wrappers that report to a timeline: around a peer's channel, and around the link that a liar lies through."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import (
    AttemptView,
    Channel,
    Disclose,
    Exchange,
    Forward,
    ForwardingChannel,
    Gather,
    Noticed,
    Said,
    Scatter,
)
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.wire.frames import Packet
from troth.protocol.wire.messages import Announced, Clip, Close, Commit, Message, Phase
from troth.simulation.narrate.phrases import Phrases, by_number, phase

R = TypeVar("R")


class Listener(Protocol):
    """Takes the reports of traced links and channels; a timeline is one."""

    phrases: Phrases

    def means(
        self, sender: PeerId, to: PeerId, packet: Packet, lies: Mapping[str, int], send: Callable[[], None]
    ) -> None:
        """A liar's own code sends this; what becomes of it is up to the link, which `send` calls."""

    def enters(self, peer: PeerId, members: frozenset[PeerId]) -> None:
        """The peer enters an attempt with these members."""

    def begins(self, step: int, members: Collection[PeerId]) -> None:
        """A peer begins a step."""

    def tell(
        self, peer: PeerId, text: str, slot: Slot | None = None, values: bytes = b"", record: int | None = None
    ) -> None:
        """The peer did or found something; `record` is the step whose record was signed with it."""

    def decided(
        self,
        peer: PeerId,
        slot: Slot,
        members: Collection[PeerId],
        said: Mapping[PeerId, Announced],
        equivocations: Collection[PeerId],
    ) -> bool:
        """The peer decided an announcement. Returns whether by a certificate."""

    def returns(self, peer: PeerId) -> None:
        """A call of the peer's channel ended."""

    def stops(self, peer: PeerId, why: CannotGoOnError) -> None:
        """A call of the peer's channel raised this."""


class TracedLink:
    """Wraps a liar's link: reports what its own code wants to send."""

    def __init__(self, link: Any, peer: PeerId, timeline: Listener) -> None:
        self._link = link
        self._peer = peer
        self._timeline = timeline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def send(self, to: PeerId, packet: Packet) -> None:
        self._timeline.means(self._peer, to, packet, self._link.lies, lambda: self._link.send(to, packet))


@dataclass(frozen=True)
class _Last:
    """Announcement that ended last."""

    slot: Slot
    said: Mapping[PeerId, Announced]
    equivocations: Collection[PeerId]
    certified: bool

    @property
    def clips(self) -> dict[PeerId, Clip]:
        messages = {peer: announced.message for peer, announced in self.said.items()}
        return {peer: message for peer, message in messages.items() if isinstance(message, Clip)}


class TracedChannel(ForwardingChannel):
    """Around a peer's channel: what it calls, and what comes back. Whatever is not here passes through."""

    def __init__(self, channel: Channel, noticed: Noticed, peer: PeerId, timeline: Listener) -> None:
        super().__init__(channel)
        self._noticed = noticed
        self._peer = peer
        self._timeline = timeline
        self._step = -1
        self._attempt = 0
        self._members: frozenset[PeerId] = frozenset()
        self._before: frozenset[PeerId] = frozenset()  # in the attempt before
        self._silent: set[PeerId] = set()
        self._last: _Last | None = None

    def _enter(self, view: AttemptView) -> None:
        self._members = view.members
        self._timeline.enters(self._peer, view.members)

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        self._enter(view)
        if slot.step != self._step:
            self._step, self._attempt, self._silent = slot.step, 0, set()
            self._before = self._members
            self._timeline.begins(slot.step, self._members)
        said = await self._alive(super().announce(slot, message, view))
        members = self._members - self._silent
        found = self._noticed.equivocations(slot.step)
        equivocations = [peer for peer, (where, *_) in found.items() if where == slot]
        certified = self._timeline.decided(self._peer, slot, members, said, equivocations)
        self._silent |= set() if certified else members - said.keys()
        self._last = _Last(slot, said, equivocations, certified)
        self._tell_record(slot, said)
        return said

    def _tell_record(self, slot: Slot, said: Mapping[PeerId, Announced]) -> None:
        """Commits sign the record of the step before; Close, at the end of the run, signs the last (SPEC U2, U4)."""
        signed = [one.message.signature for one in said.values() if isinstance(one.message, Commit | Close)]
        count = len(signed) - signed.count(None)
        if count:
            step = slot.step - (slot.phase == Phase.COMMIT)
            self._timeline.tell(self._peer, f"had {count} signatures of the record of step {step}", slot, record=step)

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        self._enter(view)
        if isinstance(blobs, Scatter):
            self._tell_attempt(slot)
        came = await self._alive(super().exchange(slot, blobs, view))
        for text in self._lacking(blobs, came):
            self._tell(text, slot)
        return came

    def _lacking(self, blobs: Exchange[Any], came: Any) -> Iterator[str]:
        match blobs:
            case Scatter(expected=expected):
                missing = {peer for part, senders in expected.items() for peer in senders - came.get(part, {}).keys()}
                if missing:
                    yield f"missed parts of {self._several(missing)}"
            case Gather(wanted=wanted):
                if lacked := sorted(set(wanted) - came.keys()):
                    yield f"lacked the aggregate of part {' '.join(map(str, lacked))}"
            case Disclose():
                if nothing := sorted({part for (part, _), contributions in came.items() if not contributions}):
                    yield f"saw nothing of part {' '.join(map(str, nothing))}"
            case Forward(wanted=wanted):
                lost = [f"part {part} of {self._several([peer])}" for part, peer in sorted(set(wanted) - came.keys())]
                if lost:
                    yield f"got from nobody: {', '.join(lost)}"

    def _tell_attempt(self, slot: Slot) -> None:
        """Report why the peer begins again, as far as one can see: a member is out, or a part did not come."""
        out = self._before - self._members
        reasons = [f"{self._several([peer])} is out ({self._why_out(peer)})" for peer in sorted(out)]
        if slot.attempt > self._attempt and not out:
            reasons = self._complaints() or ["something did not come"]
        if reasons:
            begins = f"began attempt {slot.attempt} of" if slot.attempt > self._attempt else "went on with"
            self._tell(f"{begins} step {slot.step}: {'; '.join(reasons)}", slot)
        self._attempt, self._before = slot.attempt, self._members

    def _why_out(self, peer: PeerId) -> str:
        last = self._last
        if last is None:
            return "it was not heard"
        if peer in last.equivocations:
            return f"said two things in {phase(last.slot)}"
        if peer not in last.said:
            return f"{'said nothing that counts' if last.certified else 'silent'} in {phase(last.slot)}"
        missed_by = [owner for owner, clip in last.clips.items() if peer in clip.missing]
        if missed_by:
            return f"its parts are missed by {self._several(missed_by)}"
        match last.slot.phase:
            case Phase.COMMIT:
                return "committed as its role does not allow"
            case Phase.CLIP:
                return "no aggregate, and no reason for it"
            case Phase.REVEAL:
                return "its coin is wrong, or too few have its aggregate"
            case Phase.CONFIRM:
                return "too few have its aggregate"
            case Phase.REPORT:
                return "its report is in no form"
            case Phase.ACCUSE | Phase.VOTE:
                return "judged over its aggregate"
            case _:
                return f"out in {phase(last.slot)}"

    def _complaints(self) -> list[str]:
        owners: dict[str, list[PeerId]] = defaultdict(list)  # by the contributors whose parts they miss
        for owner, clip in (self._last.clips if self._last is not None else {}).items():
            owners[self._several(clip.missing)].append(owner)
        texts = [f"parts of {missing} did not come to {self._several(to)}" for missing, to in owners.items() if missing]
        return sorted(texts, key=by_number)

    def _tell(self, text: str, slot: Slot) -> None:
        self._timeline.tell(self._peer, text, slot)

    def _several(self, peers: Iterable[bytes]) -> str:
        return self._timeline.phrases.several(peers)

    async def _alive(self, answer: Awaitable[R]) -> R:
        try:
            result = await answer
            self._timeline.returns(self._peer)
            return result
        except CannotGoOnError as why:
            self._timeline.stops(self._peer, why)
            raise
