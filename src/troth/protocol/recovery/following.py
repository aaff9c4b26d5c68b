"""Following a run from its founders to now, by a stranger that trusts nobody: the records that changed the members, one fresh
record after them, and what members have in common there (SPEC J8)."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from troth.crypto import Digest, PeerId, Slot, signed_bytes, tagged_hash
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.errors import CannotGoOnError, LeftOutError
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import PendingAudits
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.protocol.core.standing import Standing, decode_standing, digest_of
from troth.protocol.core.state import LastRecord, Peer, State
from troth.protocol.recovery.history import has_quorum, record_of
from troth.protocol.wire.frames import CertifiedRecord, HistoryShown, HistoryWanted, TipSigned, TipWanted
from troth.protocol.wire.messages import Malformed, Phase
from troth.protocol.wire.primitives import Primitives

T = TypeVar("T")
_PATIENCE = 2  # time before asking again, in units of the least delta
_ASKING = 400  # times that members are asked without news
FRESH = 16  # of a member's last records: older ones it does not confirm


class TwoHistoriesError(CannotGoOnError):
    """Two histories of this run, both signed by quorums: people have to find out which one is theirs (SPEC J8)."""


@dataclass(frozen=True)
class Changes:
    """The records that changed the members, from the founders on, and the members after them."""

    run: Run
    roster: Roster
    certified: tuple[CertifiedRecord, ...] = ()
    step: int = -1  # of the last one

    @classmethod
    def founding(cls, run: Run) -> "Changes":
        return cls(run, Roster.founding(run))

    def opened(self, signed: CertifiedRecord, tools: Primitives) -> StepRecord | None:
        """The record, if it is a later one of these members, and a quorum of them signed it."""
        record = record_of(signed)
        if record is None or record.step <= self.step or record.members != self.roster.members:
            return None
        return record if has_quorum(self.run, signed, record, self.roster, tools) else None

    def follow(self, shown: Sequence[CertifiedRecord], tools: Primitives) -> "Changes":
        """These and those of the changes shown that continue them."""
        here = self
        for signed in shown:
            record = here.opened(signed, tools)
            if record is None or not record.changes_roster:
                return here
            here = Changes(here.run, here.roster.after(record), (*here.certified, signed), record.step)
        return here


@dataclass(frozen=True)
class Tip:
    """The newest record that somebody showed, and the standing after it."""

    changes: Changes
    signed: CertifiedRecord
    record: StepRecord
    standing: Standing
    digest: Digest  # of the record

    @classmethod
    def of(cls, changes: Changes, shown: HistoryShown, tools: Primitives) -> "Tip | None":
        """The tip that a peer shows, if it follows these changes and its record names this standing."""
        record = None if shown.tip is None else changes.opened(shown.tip, tools)
        if record is None or shown.tip is None or record.closing or digest_of(shown.standing) != record.standing:
            return None
        standing = decode_standing(shown.standing)
        if isinstance(standing, Malformed) or not _agrees(standing.roster, changes.roster.after(record)):
            return None  # a change was left out, and the quorum may be another one
        return cls(changes, shown.tip, record, standing, tools.digest(shown.tip.record))

    def contradicts(self, other: "Tip") -> bool:
        """Whether quorums signed two different records of one step, one of which no later incarnation replaces."""
        return (self.record.step, self.record.incarnation) == (other.record.step, other.record.incarnation) and (
            self.digest != other.digest
        )

    def state(self, known: State[T], tools: Primitives) -> State[T]:
        """The common state after it; model and optimizer are still those of the known one."""
        standing, record = self.standing, self.record
        return State(
            step=record.step + 1,
            roster=standing.roster,
            training=known.training,
            model=known.model,
            randomness=standing.randomness,
            earlier_randomness=standing.earlier_randomness,
            scales=standing.scales,
            pending_audits=PendingAudits.after(record),
            audit_records={},
            incarnation=record.incarnation,
            last=LastRecord.of(record, self.changes.roster, tools),
        )


def _agrees(whole: Roster, followed: Roster) -> bool:
    """Tell whether a roster is the one that was followed, in all that follows from changes of the members alone."""
    named = (
        "members",
        "banned",
        "byzantine",
        "admitted",
        "away",
        "ever_expelled",
        "successors",
        "addresses",
        "founders",
    )
    return all(getattr(whole, name) == getattr(followed, name) for name in named)


def tip_bytes(slot: Slot, signer: PeerId, nonce: bytes, digest: Digest) -> bytes:
    """Bytes that a member signs to say that this record is part of its history now."""
    return signed_bytes(slot._replace(phase=Phase.REJOIN), signer, tagged_hash("troth/tip/1", nonce, digest))


@dataclass
class _Asked:
    """A tip that members are asked about, with a number that nobody could know before."""

    tip: Tip
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    said: set[PeerId] = field(default_factory=set)


class Following(Generic[T]):
    """One stranger's way from the founders to a record that a quorum of its members confirms."""

    def __init__(self, peer: Peer[T], channel: BroadcastChannel) -> None:
        self._peer = peer
        self._channel = channel
        self._changes = Changes.founding(peer.run)
        self._asked: _Asked | None = None

    async def run(self) -> Tip:
        """Follow until a quorum has confirmed the newest record. Raises if two histories come up, or nobody answers."""
        listener, unanswered = self._channel.listener, 0
        while unanswered < _ASKING:
            before = self._progress
            self._ask()
            until = listener.now() + _PATIENCE * self._channel.pacing.bounds.delta
            while listener.now() < until:
                heard = await listener.hear_outside(until)
                if heard is None:
                    continue
                sender, frame = heard
                if isinstance(frame, HistoryShown):
                    self._take(frame)
                elif isinstance(frame, TipSigned) and self._confirms(sender, frame):
                    assert self._asked is not None
                    return self._asked.tip
            unanswered = 0 if self._progress != before else unanswered + 1
        raise LeftOutError("no member showed how the run came to where it is")

    @property
    def _progress(self) -> tuple[int, int, int]:
        asked = self._asked
        return (
            (self._changes.step, 0, 0)
            if asked is None
            else (self._changes.step, asked.tip.record.step, len(asked.said))
        )

    def _ask(self) -> None:
        peer, channel, asked = self._peer, self._channel, self._asked
        everyone = frozenset({*peer.run.founders, *self._changes.roster.members})
        channel.stand_outside(everyone)
        slot = Slot(peer.run.id, 0, Phase.REJOIN)
        channel.outlet.send_each(slot, sorted(everyone), HistoryWanted(self._changes.step + 1))
        if asked is not None:
            wanted = TipWanted(asked.nonce, asked.tip.record.step, asked.tip.digest)
            channel.outlet.send_each(slot, asked.tip.standing.roster.members, wanted)

    def _take(self, shown: HistoryShown) -> None:
        tools = self._peer.tools
        self._changes = self._changes.follow(shown.changes, tools)
        tip = Tip.of(self._changes, shown, tools)
        if tip is None:
            return
        last = None if self._asked is None else self._asked.tip
        if last is not None and tip.contradicts(last):
            raise TwoHistoriesError(
                f"two records of step {tip.record.step}, both signed by quorums: {tip.digest.hex()[:16]} and "
                f"{last.digest.hex()[:16]}; ask the people of this run which one is theirs"
            )
        if last is None or tip.record.step > last.record.step + 1 or tip.changes.step > last.changes.step:
            self._asked = _Asked(tip)
            self._ask()

    def _confirms(self, sender: PeerId, frame: TipSigned) -> bool:
        """Take a member's signature under the tip; tell whether a quorum has signed."""
        asked, peer = self._asked, self._peer
        if asked is None or frame.nonce != asked.nonce or sender not in asked.tip.standing.roster.members:
            return False
        slot = Slot(peer.run.id, asked.tip.record.step, Phase.REJOIN)
        if peer.tools.verify(sender, tip_bytes(slot, sender, asked.nonce, asked.tip.digest), frame.signature):
            asked.said.add(sender)
        return len(asked.said) >= asked.tip.standing.roster.quorum


def confirmed(certified: Sequence[CertifiedRecord], oldest: int, wanted: TipWanted, tools: Primitives) -> bool:
    """Tell whether the one that a stranger asks about is among the last of a member's certified records."""
    place = wanted.step - oldest
    recent = max(0, len(certified) - FRESH) <= place < len(certified)
    return recent and tools.digest(certified[place].record) == wanted.digest


def shown_history(
    changes: Sequence[CertifiedRecord], tip: CertifiedRecord | None, standing: Standing | None, most: int
) -> HistoryShown:
    """What a member shows a stranger: the changes it lacks, some at a time, and after the last ones the tip."""
    if len(changes) > most or tip is None or standing is None:
        return HistoryShown(tuple(changes[:most]), None, b"")
    return HistoryShown(tuple(changes), tip, standing.encode())
