"""Lies at the door: members that mislead strangers, serve them poison, keep the honest out or let the lazy in (SPEC J1–J8).

Two wrappers around a liar's otherwise honest code: one around its link, for what it hands to those outside, and one around its
channel, for what it tells the other members about them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from troth.crypto import Digest, Identity, PeerId, Slot, Stream, blob_digest
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.core.channel import AttemptView, Channel, ForwardingChannel, Said
from troth.protocol.core.records import encode_record, record_bytes_to_sign
from troth.protocol.core.state import State
from troth.protocol.history import record_of
from troth.protocol.recovery.following import tip_bytes
from troth.protocol.wire.frames import (
    CertifiedRecord,
    ChunkShown,
    Frame,
    HistoryShown,
    Packet,
    StateIndex,
    SyncShown,
    TipSigned,
    TipWanted,
)
from troth.protocol.wire.messages import (
    Accusation,
    Accuse,
    ChargeKind,
    Commit,
    GuiltySide,
    Message,
    Phase,
    Probe,
    Reveal,
    Vote,
)
from troth.workshop.attacks.lies import pick

DOOR_LIES = {
    "poison": "serve strangers and observers forged or old histories, wrong states and chunks, and sign any tip",
    "stall": "show what one has, and hand out no chunk of it",
    "keep-out": "list no ticket and no commitment of strangers but forged ones, accuse them, and vote against them",
    "let-in": "list commitments that candidates did not make for this step, accuse no stranger, and vote for them",
}
_OFTEN = 0.7  # chance of a lie, where there is one to tell
_MOST_KEPT = 8  # old histories to show again


@dataclass
class PoisonedLink:
    """What a member hands to those outside, poisoned or withheld."""

    link: PacketLink
    identity: Identity
    lies: frozenset[str]
    draw: Stream
    fellows: Mapping[PeerId, Identity]

    def __post_init__(self) -> None:
        self._signers = [self.identity, *self.fellows.values()]
        self._old: list[HistoryShown] = []
        self.now, self.gone = self.link.now, self.link.gone

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        heard = await self.link.receive(until)
        if heard is not None and "poison" in self.lies and isinstance(heard[1].frame, TipWanted):
            for frame in self._signed_tips(heard[1], heard[1].frame):
                self.link.send(heard[0], Packet(heard[1].slot, frame))
        return heard

    def send(self, to: PeerId, packet: Packet) -> None:
        for frame in self._instead_of(packet):
            self.link.send(to, Packet(packet.slot, frame))

    def _instead_of(self, packet: Packet) -> Iterator[Frame]:
        frame, slot = packet.frame, packet.slot
        if isinstance(frame, HistoryShown) and len(self._old) < _MOST_KEPT:
            self._old.append(frame)
        if isinstance(frame, ChunkShown) and "stall" in self.lies:
            return
        if "poison" not in self.lies or float(self.draw.uniform(1)[0]) >= _OFTEN:
            yield frame
            return
        match frame:
            case HistoryShown():
                yield from self._history(slot, frame)
            case SyncShown() if frame.certified:
                yield msgspec.structs.replace(frame, certified=self._records(slot, frame.certified))
            case StateIndex():
                yield msgspec.structs.replace(frame, index=self._flipped(frame.index))
            case ChunkShown() if len(frame.blob):
                yield msgspec.structs.replace(frame, blob=memoryview(self._flipped(bytes(frame.blob))))
            case _:
                yield frame

    def _history(self, slot: Slot, shown: HistoryShown) -> Iterator[Frame]:
        """The past as if it were now, a history with something left out or forged, or a standing that nobody signed."""
        forged = () if shown.tip is None else self._records(slot, (shown.tip,))
        lies = (
            pick(self.draw, self._old),
            msgspec.structs.replace(shown, changes=shown.changes[1:]),
            msgspec.structs.replace(shown, changes=self._records(slot, shown.changes) if shown.changes else ()),
            msgspec.structs.replace(shown, tip=forged[0] if forged else None),
            msgspec.structs.replace(shown, standing=self._flipped(shown.standing)),
        )
        yield pick(self.draw, lies)
        if int(self.draw.integers(2, 1)[0]):
            yield shown  # and the truth after it

    def _records(self, slot: Slot, certified: tuple[CertifiedRecord, ...]) -> tuple[CertifiedRecord, ...]:
        """The last record forged and signed by all liars, without its signatures, or left out."""
        last = record_of(certified[-1])
        if last is None:
            return certified
        raw = encode_record(msgspec.structs.replace(last, spread=last.spread + 1.0, randomness=bytes(32)))
        digest = blob_digest(raw)
        signed = {
            bytes(who.peer): bytes(who.sign(record_bytes_to_sign(slot.run, last.step, who.peer, digest)))
            for who in self._signers
        }
        lies = ((CertifiedRecord(raw, signed),), (CertifiedRecord(certified[-1].record, {}),), ())
        return (*certified[:-1], *pick(self.draw, lies))

    def _signed_tips(self, packet: Packet, wanted: TipWanted) -> Iterator[Frame]:
        """Its own signature under whatever is asked, and those of its fellows."""
        about = Slot(packet.slot.run, wanted.step, Phase.REJOIN)
        for who in self._signers:
            yield TipSigned(wanted.nonce, who.sign(tip_bytes(about, who.peer, wanted.nonce, Digest(wanted.digest))))

    def _flipped(self, raw: bytes) -> bytes:
        if not raw:
            return raw
        place = int(self.draw.integers(len(raw), 1)[0])
        return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]


class DoorLiar(ForwardingChannel):
    """What a member says about strangers: against the honest, for the lazy."""

    def __init__(self, inner: Channel, lies: frozenset[str], draw: Stream, state: Callable[[], State[Any]]) -> None:
        super().__init__(inner)
        self._lies = lies
        self._draw = draw
        self._state = state
        self._probes: dict[bytes, Probe] = {}  # of candidates, in earlier steps

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        if "keep-out" in self._lies:
            message = self._against(message)
        elif "let-in" in self._lies:
            message = self._for(message)
        return await super().announce(slot, message, view)

    @property
    def _candidates(self) -> frozenset[PeerId]:
        return self._state().roster.door.keys

    def _against(self, message: Message) -> Message:
        match message:
            case Commit():
                return msgspec.structs.replace(message, tickets=())
            case Reveal():
                forged = tuple(Probe(key, self._bytes(32), self._bytes(64)) for key in sorted(self._candidates))
                return msgspec.structs.replace(message, probes=forged if self._lies_now else ())
            case Accuse() if self._lies_now:
                return msgspec.structs.replace(message, accusations=(*message.accusations, *self._accusations()))
            case Vote():
                return self._voting(message, GuiltySide.ACCUSED)
        return message

    def _for(self, message: Message) -> Message:
        match message:
            case Reveal():
                listed = {probe.key: probe for probe in message.probes}
                old = tuple(probe for key, probe in sorted(self._probes.items()) if key not in listed)
                self._probes |= listed
                return msgspec.structs.replace(message, probes=(*message.probes, *old)[:16])
            case Accuse():
                others = tuple(one for one in message.accusations if one.target not in self._probes)
                return msgspec.structs.replace(message, accusations=others)
            case Vote():
                return self._voting(message, GuiltySide.ACCUSER)
        return message

    @property
    def _lies_now(self) -> bool:
        return float(self._draw.uniform(1)[0]) < _OFTEN

    def _bytes(self, count: int) -> bytes:
        return bytes(self._draw.integers(256, count).tolist())

    def _accusations(self) -> Iterator[Accusation]:
        """Of everyone whose gradient on probation this member may have been drawn to audit."""
        state = self._state()
        kept = state.audit_records.get(state.step - 1)
        for key, said in sorted(kept.probed.items()) if kept is not None else ():
            yield Accusation(key, ChargeKind.GRADIENT, state.step - 1, None, blob_digest(said.envelope.payload))

    def _voting(self, vote: Vote, verdict: GuiltySide) -> Vote:
        state = self._state()
        strangers = {*self._candidates, *(key for kept in state.audit_records.values() for key in kept.probed)}
        return Vote(
            tuple(
                msgspec.structs.replace(ballot, verdict=verdict) if ballot.target in strangers else ballot
                for ballot in vote.ballots
            )
        )
