"""Wrappers that tell a timeline what happens: around a peer's channel, and around the line that a liar lies through."""

from collections import defaultdict
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import Entry
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.wire.frames import Packet
from troth.protocol.wire.messages import Announced, Clip, Close, Commit, Message, Phase
from troth.simulation.narrate.phrases import by_number, phase

if TYPE_CHECKING:
    from troth.simulation.narrate.timeline import Timeline

R = TypeVar("R")


class TracedLink:
    """Around a liar's line: what its own code wants to send."""

    def __init__(self, link: Any, peer: PeerId, timeline: "Timeline") -> None:
        self._link = link
        self._peer = peer
        self._timeline = timeline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def send(self, to: PeerId, packet: Packet) -> None:
        self._timeline.means(self._peer, to, packet, self._link.lies, lambda: self._link.send(to, packet))


@dataclass(frozen=True)
class _Last:
    """The announcement that ended last."""

    slot: Slot
    said: Mapping[PeerId, Announced]
    equivocations: Collection[PeerId]
    certified: bool

    @property
    def clips(self) -> dict[PeerId, Clip]:
        messages = {peer: announced.message for peer, announced in self.said.items()}
        return {peer: message for peer, message in messages.items() if isinstance(message, Clip)}


class TracedChannel:
    """Around a peer's channel: what it calls, and what comes back. Whatever is not here passes through."""

    def __init__(self, channel: Any, peer: PeerId, timeline: "Timeline") -> None:
        self._channel = channel
        self._peer = peer
        self._timeline = timeline
        self._step = -1
        self._attempt = 0
        self._founders: frozenset[PeerId] = frozenset()  # members when the step began
        self._members: frozenset[PeerId] = frozenset()
        self._before: frozenset[PeerId] = frozenset()  # in the attempt before
        self._awaited: Mapping[int, frozenset[PeerId]] = {}
        self._silent: set[PeerId] = set()
        self._last: _Last | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def enter(self, entry: Entry) -> None:
        self._members, self._awaited = entry.members, entry.awaited
        self._timeline.enters(self._peer, entry.members)
        self._channel.enter(entry)

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        if slot.step != self._step:
            self._step, self._attempt, self._silent = slot.step, 0, set()
            self._founders = self._before = self._members
            self._timeline.begins(slot.step, self._members)
        said: Mapping[PeerId, Announced] = await self._alive(self._channel.announce(slot, message))
        members = self._members - self._silent
        found = self._channel.equivocations(slot.step)
        equivocations = [peer for peer, (where, *_) in found.items() if where == slot]
        certified = self._timeline.decided(self._peer, slot, members, said, equivocations)
        self._silent |= set() if certified else members - said.keys()
        self._last = _Last(slot, said, equivocations, certified)
        self._tell_record(slot, said)
        return said

    def _tell_record(self, slot: Slot, said: Mapping[PeerId, Announced]) -> None:
        """Commits sign the record of the step before, and what comes at the end of the run signs the last (SPEC U2, U4)."""
        signed = [one.message.signature for one in said.values() if isinstance(one.message, Commit | Close)]
        count = len(signed) - signed.count(None)
        if count:
            step = slot.step - (slot.phase == Phase.COMMIT)
            self._timeline.tell(self._peer, f"had {count} signatures of the record of step {step}", slot, record=step)

    async def scatter(self, slot: Slot, *more: Any) -> Any:
        self._tell_attempt(slot)
        parts = await self._alive(self._channel.scatter(slot, *more))
        missing = {peer for part, senders in self._awaited.items() for peer in senders - parts.get(part, {}).keys()}
        if missing:
            self._tell(f"missed parts of {self._several(missing)}", slot)
        return parts

    async def gather(self, slot: Slot, mine: Any, wanted: Any, *more: Any) -> Any:
        blobs = await self._alive(self._channel.gather(slot, mine, wanted, *more))
        missing = sorted(set(wanted) - blobs.keys())
        if missing:
            self._tell(f"lacked the aggregate of part {' '.join(map(str, missing))}", slot)
        return blobs

    async def disclose(self, slot: Slot, *more: Any) -> Any:
        shown = await self._alive(self._channel.disclose(slot, *more))
        nothing = sorted(key for key, proven_parts in shown.items() if not proven_parts)
        if nothing:
            parts = sorted({key[0] if isinstance(key, tuple) else key for key in nothing})
            self._tell(f"saw nothing of part {' '.join(map(str, parts))}", slot)
        return shown

    async def pass_on(self, slot: Slot, proven_parts: Any, wanted: Any, *more: Any) -> Any:
        passed = await self._alive(self._channel.pass_on(slot, proven_parts, wanted, *more))
        missing = [f"part {part} of {self._several([peer])}" for part, peer in sorted(set(wanted) - passed.keys())]
        if missing:
            self._tell(f"got from nobody: {', '.join(missing)}", slot)
        return passed

    def _tell_attempt(self, slot: Slot) -> None:
        """Somebody is out, or a part did not come: why the peer begins again, as far as one can see."""
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
            case _:
                return "judged over its aggregate"

    def _complaints(self) -> list[str]:
        owners: dict[str, list[PeerId]] = defaultdict(list)  # by whose parts they miss
        for owner, clip in (self._last.clips if self._last is not None else {}).items():
            owners[self._several(clip.missing)].append(owner)
        told = [f"parts of {missing} did not come to {self._several(to)}" for missing, to in owners.items() if missing]
        return sorted(told, key=by_number)

    def _tell(self, text: str, slot: Slot) -> None:
        self._timeline.tell(self._peer, text, slot)

    def _several(self, peers: Iterable[bytes]) -> str:
        return self._timeline.words.several(peers)

    async def _alive(self, answer: Awaitable[R]) -> R:
        try:
            result = await answer
            self._timeline.returns(self._peer)
            return result
        except CannotGoOnError as why:
            self._timeline.stops(self._peer, why)
            raise
