"""Wrappers that tell a timeline what happens: around a peer's channel, and around the line that a liar lies through."""

from collections import defaultdict
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from troth.crypto import Context, PeerId
from troth.protocol.core.channel import Entry
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.wire.frames import Packet
from troth.protocol.wire.messages import Announced, Clip, Close, Commit, Message, Phase
from troth.simulation.narrate.phrases import by_number, phase

if TYPE_CHECKING:
    from troth.simulation.narrate.timeline import Timeline

R = TypeVar("R")


class ToldLine:
    """Around a liar's line: what its own code wants to send."""

    def __init__(self, line: Any, peer: PeerId, timeline: "Timeline") -> None:
        self._line = line
        self._peer = peer
        self._timeline = timeline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._line, name)

    def send(self, to: PeerId, packet: Packet) -> None:
        self._timeline.means(self._peer, to, packet, self._line.lies, lambda: self._line.send(to, packet))


@dataclass(frozen=True)
class _Last:
    """The announcement that ended last."""

    place: Context
    said: Mapping[PeerId, Announced]
    twice: Collection[PeerId]
    certified: bool

    @property
    def clips(self) -> dict[PeerId, Clip]:
        messages = {peer: announced.message for peer, announced in self.said.items()}
        return {peer: message for peer, message in messages.items() if isinstance(message, Clip)}


class ToldChannel:
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

    async def announce(self, context: Context, message: Message) -> Mapping[PeerId, Announced]:
        if context.step != self._step:
            self._step, self._attempt, self._silent = context.step, 0, set()
            self._founders = self._before = self._members
            self._timeline.begins(context.step, self._members)
        said: Mapping[PeerId, Announced] = await self._alive(self._channel.announce(context, message))
        members = self._members - self._silent
        twice = [peer for peer, (place, *_) in self._channel.doubles(context.step).items() if place == context]
        certified = self._timeline.decided(self._peer, context, members, said, twice)
        self._silent |= set() if certified else members - said.keys()
        self._last = _Last(context, said, twice, certified)
        self._tell_record(context, said)
        return said

    def _tell_record(self, context: Context, said: Mapping[PeerId, Announced]) -> None:
        """Commits sign the record of the step before, and what comes at the end of the run signs the last (SPEC U2, U4)."""
        signed = [one.message.signature for one in said.values() if isinstance(one.message, Commit | Close)]
        count = len(signed) - signed.count(None)
        if count:
            step = context.step - (context.phase == Phase.COMMIT)
            self._timeline.tell(
                self._peer, f"had {count} signatures of the record of step {step}", context, record=step
            )

    async def scatter(self, context: Context, *more: Any) -> Any:
        self._tell_attempt(context)
        parts = await self._alive(self._channel.scatter(context, *more))
        missing = {peer for part, senders in self._awaited.items() for peer in senders - parts.get(part, {}).keys()}
        if missing:
            self._tell(f"missed parts of {self._several(missing)}", context)
        return parts

    async def gather(self, context: Context, mine: Any, wanted: Any, *more: Any) -> Any:
        blobs = await self._alive(self._channel.gather(context, mine, wanted, *more))
        missing = sorted(set(wanted) - blobs.keys())
        if missing:
            self._tell(f"lacked the aggregate of part {' '.join(map(str, missing))}", context)
        return blobs

    async def lay_open(self, context: Context, *more: Any) -> Any:
        shown = await self._alive(self._channel.lay_open(context, *more))
        nothing = sorted(key for key, parcels in shown.items() if not parcels)
        if nothing:
            parts = sorted({key[0] if isinstance(key, tuple) else key for key in nothing})
            self._tell(f"saw nothing of part {' '.join(map(str, parts))}", context)
        return shown

    async def pass_on(self, context: Context, parcels: Any, wanted: Any, *more: Any) -> Any:
        passed = await self._alive(self._channel.pass_on(context, parcels, wanted, *more))
        missing = [f"part {part} of {self._several([peer])}" for part, peer in sorted(set(wanted) - passed.keys())]
        if missing:
            self._tell(f"got from nobody: {', '.join(missing)}", context)
        return passed

    def _tell_attempt(self, context: Context) -> None:
        """Somebody is out, or a part did not come: why the peer begins again, as far as one can see."""
        out = self._before - self._members
        reasons = [f"{self._several([peer])} is out ({self._why_out(peer)})" for peer in sorted(out)]
        if context.attempt > self._attempt and not out:
            reasons = self._complaints() or ["something did not come"]
        if reasons:
            begins = f"began attempt {context.attempt} of" if context.attempt > self._attempt else "went on with"
            self._tell(f"{begins} step {context.step}: {'; '.join(reasons)}", context)
        self._attempt, self._before = context.attempt, self._members

    def _why_out(self, peer: PeerId) -> str:
        last = self._last
        if last is None:
            return "it was not heard"
        if peer in last.twice:
            return f"said two things in {phase(last.place)}"
        if peer not in last.said:
            return f"{'said nothing that counts' if last.certified else 'silent'} in {phase(last.place)}"
        missed_by = [owner for owner, clip in last.clips.items() if peer in clip.missing]
        if missed_by:
            return f"its parts are missed by {self._several(missed_by)}"
        match last.place.phase:
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

    def _tell(self, text: str, context: Context) -> None:
        self._timeline.tell(self._peer, text, context)

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
