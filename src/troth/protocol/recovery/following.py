"""Following a run from its founders to now, by a stranger that trusts nobody: the records that changed the members, one fresh
record after them, and what members have in common there (SPEC J8).

Two histories are known by one record: where they part, a quorum of members that both have in common signed what cannot stand in
the other. Whoever can make that record can make all that follows, so nothing else is asked for. It proves itself, and so it is
heard from anyone, and nothing is kept for those who show none: thousands of keys cannot crowd it out.
"""

import re
import secrets
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from troth.crypto import Digest, PeerId, Slot, signed_bytes, tagged_hash
from troth.errors import OperatorError
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roster import CommonState, Roster, decode_standing, digest_of
from troth.protocol.core.run import CannotGoOnError, LeftOutError, Run
from troth.protocol.core.state import Peer, State
from troth.protocol.history import Flaw, open_record, record_of, unsigned
from troth.protocol.wire.frames import CertifiedRecord, HistoryShown, HistoryWanted, TipSigned, TipWanted
from troth.protocol.wire.messages import Malformed, Phase
from troth.protocol.wire.primitives import Primitives

# An invitation: how the members of a run changed up to a step, under one digest, told by somebody of the run (SPEC J9).
#
# Whoever holds keys of former members can sign a history of its own, and a stranger who hears nobody else cannot tell. With an
# invitation it can.


_FORM = re.compile(r"([0-9]{1,18})-([0-9a-f]{32})")


class InvitationError(OperatorError):
    """Not an invitation; the message says where to get one."""


@dataclass(frozen=True)
class Invitation:
    """The step of a certified record, and the digest of all records up to it that changed the members."""

    step: int
    digest: str  # the first half of it, hexadecimal

    def __str__(self) -> str:
        return f"{self.step}-{self.digest}"

    @classmethod
    def to(cls, run: Digest, step: int, changes: Iterable[tuple[int, Digest]]) -> "Invitation":
        """Into a run whose last certified record is that of this step; `changes`: steps and digests of those that changed the
        members, oldest first."""
        until = [digest for at, digest in changes if at <= step]
        return cls(step, tagged_hash("troth/invitation/1", run, step.to_bytes(8, "big"), *until).hex()[:32])

    @classmethod
    def read(cls, text: str) -> "Invitation":
        """As a person typed it."""
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise InvitationError(f"'{text}' is no invitation: ask a member for what `troth invite` prints, all of it")
        return cls(int(found[1]), found[2])


T = TypeVar("T")
_PATIENCE = 2  # time before asking again, in units of the least delta
_ASKING = 400  # times that members are asked without news
FRESH = 16  # of a member's last records: older ones it does not confirm
_RECORDS = 64  # changes that a member shows at once
_MOST_NEWEST = 64  # records after the last change that are kept to be compared


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
    rosters: tuple[Roster, ...] = ()  # before each of them

    @classmethod
    def founding(cls, run: Run) -> "Changes":
        return cls(run, Roster.founding(run))

    def opened(self, signed: CertifiedRecord, tools: Primitives) -> StepRecord | None:
        """The record, if it is a later one of these members with no change in between, and a quorum of them signed it."""
        record = open_record(self.run, signed, self.roster, tools)
        return None if isinstance(record, Flaw) else record

    def with_change(self, signed: CertifiedRecord, record: StepRecord, tools: Primitives) -> "Changes":
        """These and one more, which was opened."""
        named = *self.named, (record.step, tools.digest(signed.record))
        certified, rosters = (*self.certified, signed), (*self.rosters, self.roster)
        return Changes(self.run, self.roster.after(record), certified, record.step, named, rosters)

    def has(self, step: int, digest: Digest) -> bool:
        return (step, digest) in self.named[(k := self._count_before(step)) : k + 1]

    def is_earlier(self, record: StepRecord) -> bool:
        """Whether it says of itself that it lies between two of these changes: it needs no comparison, and is nothing new."""
        count = self._count_before(record.step)
        before = self.named[count - 1][0] if count else -1
        return count < len(self.named) and record.changed == before and not record.changes_roster

    def parts(self, signed: CertifiedRecord, tools: Primitives) -> int | None:
        """The step from which on the history of this record cannot be this one; None if it may be, or no quorum signed it.

        It names the change before it, which is one of these, so the members that have to sign it are known. It cannot be of this
        history if it comes after the next of these changes and knows nothing of it, stands in its place, or is a change before
        it. What costs most is looked at last: anyone may send anything."""
        record = record_of(signed)
        if record is None:
            return None
        count = 0 if record.changed == -1 else self._count_before(record.changed) + 1
        if not count <= len(self.named) - 1 or (count and self.named[count - 1][0] != record.changed):
            return None
        step, digest = self.named[count]
        if record.step < step and not record.changes_roster:
            return None
        if record.step == step and tools.digest(signed.record) == digest:
            return None
        return min(step, record.step) if self._are_signers(self.rosters[count], signed, record, tools) else None

    def _count_before(self, step: int) -> int:
        """Number of these changes before a step."""
        return bisect_left(self.named, step, key=lambda pair: pair[0])

    def _are_signers(self, roster: Roster, signed: CertifiedRecord, record: StepRecord, tools: Primitives) -> bool:
        after, members = record.step > record.changed, record.members == roster.members
        return after and members and unsigned(self.run, signed, record, roster, tools) is None


@dataclass(frozen=True)
class NewestRecord:
    """The newest record that somebody showed, and the standing after it."""

    changes: Changes
    signed: CertifiedRecord
    record: StepRecord
    standing: CommonState
    digest: Digest  # of the record

    @classmethod
    def of(cls, changes: Changes, shown: HistoryShown, tools: Primitives) -> "NewestRecord | None":
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

    def is_meant_by(self, invitation: Invitation, run: Digest) -> bool:
        return Invitation.to(run, invitation.step, self.changed) == invitation

    def state(self, known: State[T], tools: Primitives) -> State[T]:
        """The common state after it; model and optimizer are still those of the known one."""
        return State.after(self.record, self.changes.roster, self.standing, known.training, known.model, {}, tools)


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
        "takers",
        "alarmed",
    )
    return all(getattr(whole, name) == getattr(followed, name) for name in named)


def tip_bytes(slot: Slot, signer: PeerId, nonce: bytes, digest: Digest) -> bytes:
    """Bytes that a member signs to say that this record is part of its history now."""
    return signed_bytes(slot._replace(phase=Phase.REJOIN), signer, tagged_hash("troth/tip/1", nonce, digest))


@dataclass
class _Asked:
    """A tip that members are asked about, with a number that nobody could know before."""

    tip: NewestRecord
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    said: set[PeerId] = field(default_factory=set)


class Following(Generic[T]):
    """One stranger's way from the founders to a record that a quorum of its members confirms.

    What it keeps is what quorums signed, and a few numbers for each of those whom it asks: founders and members. Answers of
    others are heard, and leave nothing behind but what a quorum signed."""

    def __init__(self, peer: Peer[T], channel: BroadcastChannel, invitation: Invitation | None = None) -> None:
        self._peer = peer
        self._channel = channel
        self._invitation = invitation
        self._changes = Changes.founding(peer.run)
        # After the last change, by step; whether it is a change itself.
        self._newest: dict[int, tuple[Digest, bool]] = {}
        self._asked: _Asked | None = None
        self._confirmed: float | None = None  # the time at which a quorum had
        self._answered: set[PeerId] = set()  # founders and members whose newest record is of this history
        # Where they are asked from whose answers did not fit: first from the founders on.
        self._since: dict[PeerId, int] = {}

    async def run(self) -> NewestRecord:
        """Follow until a quorum has confirmed the newest record and all others had time to show another history. Raises if one
        does, or nobody answers."""
        channel, unanswered = self._channel, 0
        while unanswered < _ASKING:
            before = self._progress
            self._ask()
            until = channel.now() + _PATIENCE * channel.pacing.bounds.delta
            while channel.now() < until:
                heard = await channel.hear_outside(until)
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
        """Whether a quorum has confirmed the record, and whoever answers at all has answered within a quiet step's time; of those
        whose answers did not fit, within so many that they can show where their history parts."""
        if self._confirmed is None:
            return False
        waited, everyone = self._channel.now() - self._confirmed, self._everyone
        pages = 1 + len(self._changes.named) // _RECORDS
        steps = 1 + pages * bool(self._since.keys() & everyone - self._answered)
        return everyone <= self._answered or waited >= steps * self._channel.pacing.bounds.quiet_step

    @property
    def _progress(self) -> tuple[int, ...]:
        """Numbers that only grow, and that liars cannot make grow for ever."""
        asked, newest = self._asked, max(self._newest, default=-1)
        known = self._changes.step, newest, len(self._answered), len(self._since), sum(self._since.values())
        return known if asked is None else (*known, asked.tip.record.step, len(asked.said))

    def _ask(self) -> None:
        peer, channel, asked = self._peer, self._channel, self._asked
        channel.stand_outside(self._everyone)
        slot = Slot(peer.run.id, 0, Phase.REJOIN)
        for member in sorted(self._everyone):
            channel.outlet.send(member, slot, HistoryWanted(self._since.get(member, self._changes.step + 1)))
        if asked is not None and self._confirmed is None:
            wanted = TipWanted(asked.nonce, asked.tip.record.step, asked.tip.digest)
            channel.outlet.send_each(slot, asked.tip.standing.roster.members, wanted)

    def _take(self, sender: PeerId, shown: HistoryShown) -> None:
        """Go on by what continues this history, and stop at the record where another one parts from it. The first record that
        does neither is the last one looked at."""
        fits, common = True, -1
        for signed in shown.changes:
            record = record_of(signed)
            fits = record is not None and self._continues(signed, record)
            if not fits or record is None:
                break
            common = record.step
        if fits and shown.tip is not None:
            fits = self._take_tip(shown, shown.tip)
            if fits and sender in self._everyone:
                self._answered.add(sender)
        if sender in self._everyone and (not fits or sender in self._since):
            self._since[sender] = max(self._since.get(sender, 0), common + 1)

    def _continues(self, signed: CertifiedRecord, record: StepRecord) -> bool:
        """Whether this change is one of those known, or the next one, which then is known. Stops if it is of another history."""
        tools = self._peer.tools
        if self._changes.has(record.step, tools.digest(signed.record)):
            return True
        if record.changed != self._changes.step:
            self._stop_if_two(self._changes.parts(signed, tools), signed)
            return False
        if not record.changes_roster or self._changes.opened(signed, tools) is None:
            return False
        self._compare(signed, record)
        self._changes, self._newest = self._changes.with_change(signed, record, tools), {}
        if (alarm := self._changes.roster.alarm) is not None:
            raise alarm  # [G4]
        return True

    def _take_tip(self, shown: HistoryShown, signed: CertifiedRecord) -> bool:
        """Whether this newest record is of this history; members are asked about it, if it is newer than the last."""
        tools, record, changes = self._peer.tools, record_of(signed), self._changes
        if record is None:
            return False
        digest = tools.digest(signed.record)
        if record.changed != changes.step:
            self._stop_if_two(changes.parts(signed, tools), signed)
            return changes.is_earlier(record) or changes.has(record.step, digest)
        if record.step not in self._newest or self._newest[record.step][0] != digest:
            if changes.opened(signed, tools) is None:
                return False
            self._compare(signed, record)
            kept = {**self._newest, record.step: (digest, record.changes_roster)}
            self._newest = dict(sorted(kept.items())[-_MOST_NEWEST:])
        last = None if self._asked is None else self._asked.tip
        newer = last is None or record.step > last.record.step + 1 or changes.step > last.changes.step
        tip = NewestRecord.of(changes, shown, tools) if newer and self._confirmed is None else None
        if tip is not None and self._is_invited(tip):
            self._asked = _Asked(tip)
            self._ask()
        return True

    def _compare(self, signed: CertifiedRecord, record: StepRecord) -> None:
        """Stop if a record that continues these changes cannot be of one history with another one that does: both are of one
        step, or one is a change that the other, which is later, knows nothing of."""
        digest = self._peer.tools.digest(signed.record)
        for step, (known, changes) in self._newest.items():
            of_one_step = step == record.step and known != digest
            if of_one_step or (changes and step < record.step) or (record.changes_roster and step > record.step):
                self._stop_if_two(min(step, record.step), signed)

    def _stop_if_two(self, step: int | None, signed: CertifiedRecord) -> None:
        """Stop where two histories part; an invitation has settled that up to its step."""
        if step is None or (self._invitation is not None and step <= self._invitation.step):
            return
        digest = self._peer.tools.digest(signed.record)
        raise TwoHistoriesError(
            f"two histories part in step {step}, both signed by quorums: only one has the record {digest.hex()[:16]}; ask the "
            "people of this run which one is theirs, and for an invitation (troth invite)"
        )

    def _is_invited(self, tip: NewestRecord) -> bool:
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
            self._confirmed = self._channel.now()


def confirmed(certified: Sequence[CertifiedRecord], oldest: int, wanted: TipWanted, tools: Primitives) -> bool:
    """Tell whether the one that a stranger asks about is among the last of a member's certified records."""
    place = wanted.step - oldest
    recent = max(0, len(certified) - FRESH) <= place < len(certified)
    return recent and tools.digest(certified[place].record) == wanted.digest


def shown_history(
    changes: Sequence[CertifiedRecord], tip: CertifiedRecord | None, standing: CommonState | None, most: int = _RECORDS
) -> HistoryShown:
    """What a member shows a stranger: the changes it lacks, some at a time, and after the last ones the tip."""
    if len(changes) > most or tip is None or standing is None:
        return HistoryShown(tuple(changes[:most]), None, b"")
    return HistoryShown(tuple(changes), tip, standing.encode())
