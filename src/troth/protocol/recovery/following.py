"""Following a run from its founders to now, by a stranger that trusts nobody: the records that changed the members, one fresh
record after them, and what members have in common there (SPEC J8)."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
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
from troth.protocol.recovery.invitation import Invitation
from troth.protocol.wire.frames import CertifiedRecord, HistoryShown, HistoryWanted, TipSigned, TipWanted
from troth.protocol.wire.messages import Malformed, Phase
from troth.protocol.wire.primitives import Primitives

T = TypeVar("T")
_PATIENCE = 2  # time before asking again, in units of the least delta
_ASKING = 400  # times that members are asked without news
FRESH = 16  # of a member's last records: older ones it does not confirm
_MOST_OTHERS = 8  # members that show another history, whose own is followed from the founders at a time


class TwoHistoriesError(CannotGoOnError):
    """Two histories of this run, both signed by quorums, or one that is not that of the invitation: people have to find out
    which one is theirs (SPEC J8, J9)."""


@dataclass(frozen=True)
class Changes:
    """The records that changed the members, from the founders on, and the members after them."""

    run: Run
    roster: Roster
    certified: tuple[CertifiedRecord, ...] = ()
    step: int = -1  # of the last one
    named: tuple[tuple[int, Digest], ...] = ()  # their steps and digests

    @classmethod
    def founding(cls, run: Run) -> "Changes":
        return cls(run, Roster.founding(run))

    def opened(self, signed: CertifiedRecord, tools: Primitives) -> StepRecord | None:
        """The record, if it is a later one of these members with no change in between, and a quorum of them signed it."""
        record = record_of(signed)
        if record is None or record.step <= self.step or record.changed != self.step:
            return None  # a change was left out: the others' signatures may fit all the same
        if record.members != self.roster.members or self.roster.refuses(record) is not None:
            return None
        return record if has_quorum(self.run, signed, record, self.roster, tools) else None

    def follow(self, shown: Sequence[CertifiedRecord], tools: Primitives) -> "Changes":
        """These and those of the changes shown that continue them."""
        here = self
        for signed in shown:
            record = here.opened(signed, tools)
            if record is None or not record.changes_roster:
                return here
            named = *here.named, (record.step, tools.digest(signed.record))
            here = Changes(here.run, here.roster.after(record), (*here.certified, signed), record.step, named)
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
        if record is None or shown.tip is None or record.ends_run or digest_of(shown.standing) != record.standing:
            return None
        standing = decode_standing(shown.standing)
        if isinstance(standing, Malformed) or not _agrees(standing.roster, changes.roster.after(record)):
            return None  # a change was left out, and the quorum may be another one
        return cls(changes, shown.tip, record, standing, tools.digest(shown.tip.record))

    @property
    def changed(self) -> list[tuple[int, Digest]]:
        """Steps and digests of the records that changed the members, up to this one."""
        last = [(self.record.step, self.digest)] if self.record.changes_roster else []
        return [*self.changes.named, *last]

    def parts_from(self, other: "Tip") -> int | None:
        """The step from which on the two histories cannot be one; None if one may continue the other. Where one changes the
        members, the other can have no later record of those before."""
        mine, theirs = self.changed, other.changed
        common = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(mine, theirs, strict=False))))
        here = mine[common] if len(mine) > common else (self.record.step, self.digest)
        there = theirs[common] if len(theirs) > common else (other.record.step, other.digest)
        if here[0] == there[0]:
            return None if here == there else here[0]
        earlier, changed = (here, mine) if here[0] < there[0] else (there, theirs)
        return earlier[0] if len(changed) > common else None  # the other one only ends earlier

    def is_meant_by(self, invitation: Invitation, run: Digest) -> bool:
        return Invitation.to(run, invitation.step, self.changed) == invitation

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
        "record_keys",
        "founders",
        "changed",
        "disputable",
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


@dataclass
class _Other:
    """Another history that a member shows, from the founders on."""

    changes: Changes
    tries: int = 3  # answers that lead nowhere: some may belong to earlier questions


class Following(Generic[T]):
    """One stranger's way from the founders to a record that a quorum of its members confirms."""

    def __init__(self, peer: Peer[T], channel: BroadcastChannel, invitation: Invitation | None = None) -> None:
        self._peer = peer
        self._channel = channel
        self._invitation = invitation
        self._changes = Changes.founding(peer.run)
        self._asked: _Asked | None = None
        self._confirmed: float | None = None  # the time at which a quorum had
        self._others: dict[PeerId, _Other] = {}  # of members whose newest record does not follow from these changes
        self._tips: dict[PeerId, Tip | None] = {}  # that members showed last; None: nothing that holds

    async def run(self) -> Tip:
        """Follow until a quorum has confirmed the newest record and all others had time to show another history. Raises if one
        does, or nobody answers."""
        listener, unanswered = self._channel.listener, 0
        while unanswered < _ASKING:
            before = self._progress
            self._ask()
            until = listener.now() + _PATIENCE * self._channel.pacing.bounds.delta
            while listener.now() < until:
                heard = await listener.hear_outside(until)
                if heard is not None and isinstance(heard[1], HistoryShown):
                    self._take(heard[0], heard[1])
                elif heard is not None and isinstance(heard[1], TipSigned):
                    self._count(heard[0], heard[1])
                if self._asked is not None and self._is_unopposed:
                    return self._asked.tip
            unanswered = 0 if self._progress != before else unanswered + 1
        raise LeftOutError("no member showed how the run came to where it is")

    @property
    def _everyone(self) -> frozenset[PeerId]:
        return frozenset({*self._peer.run.founders, *self._changes.roster.members})

    @property
    def _is_unopposed(self) -> bool:
        """Whether a quorum has confirmed the record, and whoever answers at all within a quiet step's time has answered."""
        if self._confirmed is None:
            return False
        waited = self._channel.listener.now() - self._confirmed
        return self._everyone <= self._tips.keys() or waited >= self._channel.pacing.bounds.quiet_step

    @property
    def _progress(self) -> tuple[int, ...]:
        asked = self._asked
        known = self._changes.step, len(self._tips), sum(other.changes.step for other in self._others.values())
        return known if asked is None else (*known, asked.tip.record.step, len(asked.said))

    def _ask(self) -> None:
        peer, channel, asked = self._peer, self._channel, self._asked
        channel.stand_outside(self._everyone)
        slot = Slot(peer.run.id, 0, Phase.REJOIN)
        for member in sorted(self._everyone):
            other = self._others.get(member)
            since = (self._changes if other is None else other.changes).step + 1
            channel.outlet.send(member, slot, HistoryWanted(since))
        if asked is not None and self._confirmed is None:
            wanted = TipWanted(asked.nonce, asked.tip.record.step, asked.tip.digest)
            channel.outlet.send_each(slot, asked.tip.standing.roster.members, wanted)

    def _take(self, sender: PeerId, shown: HistoryShown) -> None:
        tools, other = self._peer.tools, self._others.get(sender)
        if other is not None:
            self._take_other(sender, other, shown)
            return
        changes = self._changes.follow(shown.changes, tools)
        if (alarm := changes.roster.alarm) is not None:
            raise alarm
        tip = Tip.of(changes, shown, tools)
        if self._confirmed is None:
            self._changes = changes
        if tip is None:
            if shown.tip is not None and sender not in self._tips and len(self._others) < _MOST_OTHERS:
                self._others[sender] = _Other(Changes.founding(self._peer.run))
            return
        self._compare(sender, tip)
        last = None if self._asked is None else self._asked.tip
        newer = last is None or tip.record.step > last.record.step + 1 or tip.changes.step > last.changes.step
        if newer and self._confirmed is None and self._is_invited(tip):
            self._asked = _Asked(tip)
            self._ask()

    def _take_other(self, sender: PeerId, other: _Other, shown: HistoryShown) -> None:
        """Follow another history from the founders on: it may be old, or forged, or stop this stranger."""
        changes = other.changes.follow(shown.changes, self._peer.tools)
        tip = Tip.of(changes, shown, self._peer.tools)
        if tip is not None:
            self._compare(sender, tip)
        elif changes.step > other.changes.step or other.tries > 1:
            self._others[sender] = _Other(changes, other.tries - (changes.step == other.changes.step))
            return
        del self._others[sender]
        self._tips.setdefault(sender, None)

    def _compare(self, sender: PeerId, tip: Tip) -> None:
        """Stop if this is another history than one that was shown before; an invitation has settled that up to its step."""
        for other in self._tips.values():
            step = None if other is None else tip.parts_from(other)
            if step is None or other is None or (self._invitation is not None and step <= self._invitation.step):
                continue
            raise TwoHistoriesError(
                f"two histories part in step {step}, both signed by quorums: one ends with {tip.digest.hex()[:16]} and one with "
                f"{other.digest.hex()[:16]}; ask the people of this run which one is theirs, and for an invitation (troth invite)"
            )
        self._tips[sender] = tip

    def _is_invited(self, tip: Tip) -> bool:
        """Whether this record is as new as the invitation. Stops if it is, and its history is another one."""
        invitation = self._invitation
        if invitation is None:
            return True
        if tip.record.step >= invitation.step and not tip.is_meant_by(invitation, self._peer.run.id):
            raise TwoHistoriesError(
                f"this is not the history of the invitation: up to step {invitation.step} the members changed otherwise; ask "
                "whoever invited you, and reach the run through other addresses"
            )
        return tip.record.step >= invitation.step

    def _count(self, sender: PeerId, frame: TipSigned) -> None:
        """Take a member's signature under the tip; note when a quorum has signed."""
        asked, peer = self._asked, self._peer
        if asked is None or frame.nonce != asked.nonce or sender not in asked.tip.standing.roster.members:
            return
        slot = Slot(peer.run.id, asked.tip.record.step, Phase.REJOIN)
        if peer.tools.verify(sender, tip_bytes(slot, sender, asked.nonce, asked.tip.digest), frame.signature):
            asked.said.add(sender)
        if self._confirmed is None and len(asked.said) >= asked.tip.standing.roster.quorum:
            self._confirmed = self._channel.listener.now()


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
