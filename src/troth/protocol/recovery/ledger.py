"""A peer's standing in the run: its state, the certified records that lead there, and the model if it is still lacking."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from troth.crypto import Digest, PeerId, Signature
from troth.protocol.core.records import StepRecord, decode_record, encode_record
from troth.protocol.core.roster import Roster, moves_with
from troth.protocol.core.run import CannotGoOnError, Run
from troth.protocol.core.state import Outcome, Peer, State
from troth.protocol.history import (
    Flaw,
    Followed,
    FollowedBefore,
    follow,
    record_of,
    sign_off,
    state_after,
    step_of,
    unsigned,
)
from troth.protocol.recovery.restart import proven, tip_of
from troth.protocol.wire.frames import MOST_CERTIFIED_RECORDS, CertifiedRecord, RestartCertificate, SyncShown

T = TypeVar("T")


class ForkedError(CannotGoOnError):
    """The others hold another history that a quorum signed: people have to find out how (SPEC B2)."""


@dataclass(frozen=True)
class Known(Generic[T]):
    """Standing that a peer begins with, from its disk or from the run's founding."""

    state: State[T]
    certified: Sequence[CertifiedRecord] = ()  # up to the state's last record
    lacks: Digest | None = None  # digest of the model, if only the model is lacking
    past: Sequence[State[T]] = ()  # states before the last two records, oldest first


@dataclass(frozen=True)
class Shown(Generic[T]):
    """Records that another peer showed, and that continue a state of this peer's own."""

    known: State[T]
    followed: Followed
    certified: tuple[CertifiedRecord, ...]
    begun: RestartCertificate | None

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: the longest history counts; of two equally long, that of the later incarnation."""
        return self.followed.step, self.followed.records[-1].incarnation


@dataclass(frozen=True)
class _Borrowed(Generic[T]):
    """Standing of a peer before it borrowed records, once or several times."""

    before: Known[T]
    tips: frozenset[bytes]  # last records of the histories that it borrowed
    since: float  # time of the last borrowing


class Ledger(Generic[T]):
    """Moves forward with steps, back before a record that cannot be proved, and over to histories that others prove."""

    def __init__(
        self,
        peer: Peer[T],
        known: Known[T],
        on_certified: Callable[[Sequence[CertifiedRecord]], None],
        on_discarded: Callable[[StepRecord], None],
    ) -> None:
        self._run: Run = peer.run
        self._tools = peer.tools
        self._on_certified = on_certified
        self._on_discarded = on_discarded
        self._hopeless: set[bytes] = set()  # last records whose model no member hands out
        self._unproved: State[T] | None = None  # state after a record that this peer could not prove, and discarded
        self._borrowed: _Borrowed[T] | None = None  # standing before it took over records whose model it lacks
        self._followed: FollowedBefore[T] = FollowedBefore()
        self._stand_at(known)

    def _stand_at(self, known: Known[T]) -> None:
        self.state, self.lacks = known.state, known.lacks
        self.past: tuple[State[T], ...] = tuple(known.past)
        self._certified: deque[CertifiedRecord] = deque(known.certified)
        self._trim()

    @property
    def certified(self) -> tuple[CertifiedRecord, ...]:
        """The last records that this peer holds, with their signatures."""
        return tuple(self._certified)

    @property
    def records(self) -> list[StepRecord]:
        """These records, decoded."""
        return [decode_record(signed.record) for signed in self._certified]

    @property
    def over(self) -> bool:
        """Whether the run is closed, and its last model here."""
        return self.state.closed and self.lacks is None

    @property
    def rests(self) -> bool:
        """Whether to make no step unasked (SPEC G3): the last two made no update, and none will while nobody comes back.

        Two, so that the record that began the pause, with its absences and bans, is certified by the step after it."""
        roster, before, validators = self.state.roster, self.earlier, self._run.parameters.validators
        paused = roster.paused and before is not None and before.roster.paused
        return paused and not moves_with(roster, len(roster.members), validators)

    @property
    def oldest(self) -> int:
        """Step of the first certified record held."""
        return step_of(self._certified[0]) if self._certified else self.state.step

    @property
    def earlier(self) -> State[T] | None:
        """The state before the last record."""
        return self.past[-1] if self.past else None

    @property
    def unproved_roster(self) -> Roster | None:
        """Roster after a discarded record of the current step, which this peer may have signed (SPEC B9)."""
        state = self._unproved
        return state.roster if state is not None and state.step == self.state.step + 1 else None

    def record_keys_of(self, peer: PeerId) -> frozenset[PeerId]:
        """Keys with which a peer may have to sign a record, here or after it went back a step; all others are old (SPEC U6)."""
        states = *self.past, self.state
        last = (state.last.signers.get(peer, peer) for state in states if state.last is not None)
        return frozenset((*last, *(state.roster.record_key(peer) for state in states)))

    # Forward, and back

    def advance(self, outcome: Outcome[T]) -> None:
        self.past, self.state = (*self.past[-1:], self.state), outcome.state

    def restart(self, incarnation: int) -> None:
        self.state = self.state.restarted(incarnation)

    def certify(self, record: StepRecord, signatures: Mapping[PeerId, Signature]) -> None:
        """Note a certified record: it can be shown to others, and its step is not made again while a waiting honest member
        has it."""
        signed = sign_off(record, signatures)
        if not self._certified or self._certified[-1].record != signed.record:
            self._drop(record.step)
            self._certified.append(signed)
            self._trim()
            self._on_certified([signed])

    def step_back(self) -> None:
        """Go back before an uncertified last record: out of a step, a peer stands at its last certified record (SPEC B2)."""
        last = self.state.last
        if last is None or not self.past:
            return
        if self._certified and self._certified[-1].record == encode_record(last.record):
            return
        self._unproved = self.state
        self.state, self.past = self.past[-1], self.past[:-1]
        model = Digest(last.record.state_before)
        self.lacks = None if self.state.model == model else model
        self._drop(self.state.step)
        self._on_discarded(last.record)

    def _trim(self) -> None:
        """Drop the oldest certified records, but none of a pause: there are few, and all who are away need them (SPEC G3)."""
        least = max(MOST_CERTIFIED_RECORDS, self.state.roster.still + 1)
        while len(self._certified) > least:
            self._certified.popleft()

    def _drop(self, step: int) -> None:
        """Drop certified records of this step and later ones."""
        while self._certified and step_of(self._certified[-1]) >= step:
            self._certified.pop()

    # Records that others show

    def examine(self, frame: SyncShown) -> Shown[T] | None:
        """Records that a peer shows, if all are signed and continue this peer's last record, or the one before it if the others
        made the last step again (SPEC B2)."""
        certified, earlier = frame.certified, self.earlier
        if earlier is not None and self._certified and certified and certified[0].record == self._certified[-1].record:
            certified = certified[1:]
        first = record_of(certified[0]) if certified else None
        if first is None:
            return None
        known = earlier if earlier is not None and first.step == earlier.step else self.state
        followed = self._follow(known, certified)
        wrong = isinstance(followed, Flaw)
        if wrong and first.step == known.step and (known is earlier or earlier is None):
            self._stop_if_forked(known, certified[0], first)
        if isinstance(followed, Flaw) or (known is earlier and not self._is_superseded(first, frame.begun)):
            return None
        return Shown(known, followed, certified, frame.begun)

    def _follow(self, known: State[T], certified: Sequence[CertifiedRecord]) -> Followed | Flaw:
        return follow(self._run, known, self.model_of(known), certified, self._tools, self._followed)

    def _is_superseded(self, by: StepRecord, begun: RestartCertificate | None) -> bool:
        """Whether another record of the last step replaces this peer's: it is of a later incarnation, and comes with the
        restart certificate."""
        assert self.state.last is not None
        assert self.earlier is not None
        later = begun is not None and self.state.last.record.incarnation < by.incarnation == begun.incarnation
        return later and begun is not None and self._is_proved(begun, self.earlier)

    def _is_proved(self, begun: RestartCertificate, at: State[T]) -> bool:
        tip, roster = tip_of(self._run, at, self.model_of(at)), at.roster
        return proven(begun, tip, roster.members, roster.quorum, self._tools) is not None

    def _stop_if_forked(self, known: State[T], signed: CertifiedRecord, record: StepRecord) -> None:
        """Stop if a quorum signed this record: it does not continue this peer's history, so the histories part earlier."""
        if isinstance(self._follow(known, (signed,)), Followed):
            return  # a later one was wrong: else one liar could stop whoever asks it
        if unsigned(self._run, signed, record, known.roster, self._tools) is None:
            raise ForkedError(
                f"two histories: a quorum signed a record of step {record.step} (incarnation {record.incarnation}) that does "
                f"not go on from this peer's, whose last is of step {self.state.step - 1} (incarnation "
                f"{self.state.incarnation}); keep this folder, compare journals with the others, and agree which one counts"
            )

    def model_of(self, known: State[T]) -> Digest:
        """Digest of the model of this state, even where the model itself is not here."""
        if known.last is not None:
            return Digest(known.last.record.state_after)
        if known is self.earlier and self.state.last is not None:
            return Digest(self.state.last.record.state_before)
        return self.lacks or known.model

    # Over to another history

    def adopt(self, shown: Shown[T], training: T) -> None:
        """Take over records, with their model, for good."""
        self._stand(shown, training, Digest(shown.followed.records[-1].state_after))
        self._make_own(shown.known.step)
        begun = shown.begun
        if begun is not None and begun.incarnation > self.state.incarnation and self._is_proved(begun, self.state):
            self.restart(begun.incarnation)  # the step in progress is the first after a restart

    def begin_at(self, state: State[T], tip: CertifiedRecord) -> None:
        """Begin from a state that a stranger followed the run to, after this record (SPEC J8)."""
        self._stand_at(Known(state, (tip,), None))
        last = Digest(state.last.record.state_after) if state.last is not None else state.model
        self.lacks = None if state.model == last else last
        self._on_certified((tip,))

    def stand_at_tip(self, shown: Shown[T]) -> None:
        """Take over records for good, without their model: a stranger has nothing to go back to (SPEC J3)."""
        self._stand(shown, self.state.training, self.state.model)
        last = Digest(shown.followed.records[-1].state_after)
        self.lacks = None if self.state.model == last else last
        self._on_certified(shown.certified)

    def borrow(self, shown: Shown[T], now: float) -> bool:
        """Take over records of a member that waits ahead: a quorum signed them, however few members hold them (SPEC B5). Return
        whether the model is here; if it never comes, the peer goes back to where it was."""
        here = Known(self.state, self.certified, self.lacks, self.past)
        before = self._borrowed or _Borrowed(here, frozenset(), now)
        self._borrowed = replace(before, tips=before.tips | {shown.followed.tip}, since=now)
        self._stand(shown, self.state.training, self.state.model)
        self.lacks = Digest(shown.followed.records[-1].state_after)
        if self.state.model == self.lacks:
            self._make_own(shown.known.step)
        return self.lacks is None

    def is_hopeless(self, shown: Shown[T]) -> bool:
        return shown.followed.tip in self._hopeless

    def complete(self, training: T) -> None:
        """Add the model that was lacking."""
        assert self.lacks is not None
        self.state = replace(self.state, training=training, model=self.lacks)
        self._make_own(self.state.step)

    def give_up_borrowing(self, now: float, patience: float) -> bool:
        """Go back to the standing before the borrowing, if the model has not come for too long; return whether that is so."""
        borrowed = self._borrowed
        if borrowed is None or self.lacks is None or now < borrowed.since + patience:
            return False
        self._stand_at(borrowed.before)
        self._borrowed = None
        self._hopeless |= borrowed.tips
        return True

    def _stand(self, shown: Shown[T], training: T, model: Digest) -> None:
        known, followed, run, tools = shown.known, shown.followed, self._run, self._tools
        before = followed.records[:-1]
        self._drop(known.step)
        self._certified.extend(shown.certified)
        self._trim()
        self.past = (state_after(run, known, before, known.training, known.model, tools) if before else known,)
        self.state = state_after(run, known, followed.records, training, model, tools)
        unproved = self._unproved
        if unproved is not None and unproved.last is not None and encode_record(unproved.last.record) == followed.tip:
            self.state = unproved  # others can prove it; this state has the audit records that this peer kept

    def _make_own(self, since: int) -> None:
        """Make records from this step on, and any borrowed before them, this peer's own: the model is here."""
        first = since if self._borrowed is None else min(since, self._borrowed.before.state.step)
        self.lacks = self._borrowed = None
        self._on_certified(self.certified[max(0, len(self._certified) - (self.state.step - first)) :])
