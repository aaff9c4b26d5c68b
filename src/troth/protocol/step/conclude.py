"""The end of a step: who is to blame for its delays, the update, the record, and the next state."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import msgspec

from troth.crypto import Digest, PeerId
from troth.protocol.core.channel import Equivocations, Said
from troth.protocol.core.door import Entrance, best_tickets, decide, fields_of, most_members
from troth.protocol.core.records import Owed, StepRecord, aggregates_digest, chained_state, names_content
from troth.protocol.core.roles import combine
from troth.protocol.core.roster import Pair, Roster, pooled_norm
from troth.protocol.core.state import AuditRecord, Outcome, State
from troth.protocol.step.attempt import Attempt, NextModel, Reduced, Reported
from troth.protocol.step.trials import Trials
from troth.protocol.wire.messages import Accuse, Announced, Commit, said_as

# Blame without proof: link disputes, and strikes for members that make everyone wait (SPEC F1–F3).
#
# When a member says that something did not come, nobody else can tell which of the two lies. So the pair is put in a link
# dispute and served by others from then on; a member in dispute with half of the members, or named by a quorum, is taken to
# be the cause.


class LinkDisputes:
    """Link disputes and blame of one step."""

    def __init__(self, roster: Roster, step: int) -> None:
        self._roster = roster
        self._known = roster.disputed_links()
        self._served = roster.disputed_links(before=step - 1)  # in all announcements that this step's Accuse is about
        self._pairs: set[Pair] = set()
        self._blamed: frozenset[PeerId] = frozenset()  # named by a quorum, or naming half of the members

    def did_not_come(self, missed: Mapping[PeerId, Collection[PeerId]], members: Collection[PeerId]) -> None:
        """Note members whose messages did not come, by receiver. A receiver that misses half of the members is to blame itself,
        and puts nobody in dispute (SPEC F3)."""
        count = len(members)
        deaf = {
            peer
            for peer, others in missed.items()
            if count > 1 and self._roster.is_half(len(set(others) & set(members)), count)
        }
        self._blamed |= deaf
        for peer, others in missed.items():
            if peer not in deaf:
                self._pairs |= {(min(peer, other), max(peer, other)) for other in others if other not in (peer, *deaf)}

    @property
    def new(self) -> tuple[Pair, ...]:
        """Pairs that were in no dispute before."""
        return tuple(sorted(pair for pair in self._pairs if pair[1] not in self._known.get(pair[0], ())))

    @property
    def slowed(self) -> frozenset[PeerId]:
        """Members to strike: those to blame, and those in a new dispute and in more than `L`, and more than two (SPEC F3)."""
        involved = {peer for pair in self.new for peer in pair}
        return self._blamed | (self._roster.disputed(self.new) & involved)

    def hear(self, accuses: Mapping[PeerId, Announced], members: Collection[PeerId]) -> None:
        """Take in what members say in Accuse about announcements that took the fallback (SPEC F1, F3)."""
        said = {peer: said_as(announced, Accuse) for peer, announced in accuses.items()}
        heard_of = {*self._roster.members, *self._roster.left}
        unheard = {peer: {PeerId(k) for k in accuse.unheard if k != peer} & heard_of for peer, accuse in said.items()}
        doubts = {peer: {PeerId(k) for k in accuse.incomplete if k != peer} & heard_of for peer, accuse in said.items()}
        doubted = Counter(other for others in doubts.values() for other in others)
        named = Counter(other for others in unheard.values() for other in others)
        mute = {peer for peer, count in named.items() if count >= self._roster.quorum}
        alone = {peer for peer in named if self._against(peer, unheard) >= self._roster.quorum}
        explained = {
            peer for peer, others in unheard.items() if others & alone or others - self._served.get(peer, frozenset())
        }
        without_reason = {peer for peer, count in doubted.items() if count >= self._roster.quorum} - explained
        self._blamed |= (mute | without_reason) & set(members)
        # An honest member signs one view: all others find it wrong, and then it has a reason, or none does.
        split = {peer for peer, count in doubted.items() if count < self._roster.quorum} - explained
        new = {
            peer: (others | doubts[peer] & split) & set(members) - mute
            for peer, others in unheard.items()
            if peer not in mute
        }
        self.did_not_come(new, members)

    def _against(self, peer: PeerId, unheard: Mapping[PeerId, Collection[PeerId]]) -> int:
        """Count members that name it, or were in dispute with it all along: a colluder may have relayed to some of these."""
        return len({other for other, names in unheard.items() if peer in names} | self._served.get(peer, frozenset()))


# D coordinates
T = TypeVar("T")


def conclude(
    attempt: Attempt[T],
    reduced: Reduced,
    reported: Reported,
    accuses: Said,
    trials: Trials,
    link_disputes: LinkDisputes,
    following: NextModel[T],
) -> Outcome[T]:
    """Move the model, convict equivocators, deal lost audits again, and write the record that the next Commits sign."""
    context, peer = attempt.context, attempt.context.peer
    moved = move(following, trials)  # [G2, U3]
    equivocations = peer.noticed.equivocations(context.state.step)
    trials.convict_equivocators(equivocations)  # [Q6]
    owed, unaudited = trials.owed_audits(context.roles, context.state.pending_audits)  # [R7, R8]
    ending = Ending(attempt, reduced, reported, accuses, trials, link_disputes, moved, owed, unaudited)
    return outcome(attempt, trials, equivocations, ending.record, ending.next_state)


def outcome(
    attempt: Attempt[T], trials: Trials, equivocations: Equivocations, record: StepRecord, state: State[T]
) -> Outcome[T]:
    """The end of a step, with the messages that prove it."""
    peer, roles = attempt.context.peer, attempt.context.roles
    return Outcome(
        state=state,
        record=record,
        roles=roles,
        certificate=attempt.certificate,
        commits=attempt.commits,
        accuses=trials.accuses,
        votes=trials.votes,
        equivocations=equivocations,
        disclosed=trials.disclosed,
        attempts=attempt.number + 1,
        audited=roles.audits.get(peer.me, ()) if not peer.observing else (),
        observed=peer.observing,
    )


@dataclass(frozen=True)
class Moved(Generic[T]):
    """The training state after the step."""

    training: T
    updated: bool
    factor: float  # of the aggregate (SPEC U3)
    shortened: float = 1.0  # factor of the optimizer's step (SPEC U7)


def move(following: NextModel[T], trials: Trials) -> Moved[T]:
    """Apply the optimizer's step, no longer than U3 allows, unless too few contribute or a trial is undecided (SPEC G2)."""
    attempt = following.attempt
    if following.contributors_suffice and not trials.undecided(attempt.number):
        shortened = attempt.context.peer.work.shortened(following.training)
        return Moved(following.training, True, following.factor, shortened)
    return Moved(attempt.context.state.training, False, following.factor)


@dataclass(frozen=True)
class Ending(Generic[T]):
    """All results of a step, from which its record and the next state follow."""

    attempt: Attempt[T]
    reduced: Reduced
    reported: Reported
    accuses: Said
    trials: Trials
    link_disputes: LinkDisputes
    moved: Moved[T]
    owed: tuple[Owed, ...]
    unaudited: tuple[PeerId, ...]

    @cached_property
    def record(self) -> StepRecord:
        """Everything that all members agree on, and the digest of what they have in common after it (SPEC R1, U1, J8)."""
        state, run = self.attempt.context.state, self.attempt.context.peer.run
        record = state.roster.marked(self._record)  # [G4]
        return msgspec.structs.replace(record, standing=state.common.standing_after(record, run))

    @property
    def _record(self) -> StepRecord:
        attempt, trials, disputes = self.attempt, self.trials, self.link_disputes
        context, state = attempt.context, attempt.context.state
        coins = {sender: said_as(said, Accuse).coin for sender, said in self.accuses.items()}
        named = state.roster.expelled(state.step, [*trials.struck, *disputes.slowed], disputes.new)
        expelled = tuple(peer for peer in named if peer not in trials.banned)  # also one that went absent to avoid it
        contributors = tuple(sorted(attempt.roots))
        return StepRecord(
            step=state.step,
            members=state.roster.members,
            contributors=contributors,
            roots=tuple(attempt.roots[contributor] for contributor in contributors),
            parts=len(attempt.owners),
            seed_randomness=state.earlier_randomness,
            randomness=combine("roles", state.step, attempt.number, coins),
            state_before=state.model,
            state_after=self.model,
            updated=self.moved.updated,
            updates=state.scales.updates + self.moved.updated,
            tau=state.scales.tau,
            spread=pooled_norm(self.reported.table, context.roles.bounds),
            length=attempt.length,
            norm=self.reduced.norm,
            factor=self.moved.factor,
            judgements=trials.judgements,
            absent=tuple(sorted(attempt.out - trials.banned - set(expelled))),
            struck=tuple(sorted(trials.struck)),
            slowed=tuple(sorted(disputes.slowed)),
            link_disputes=disputes.new,
            expelled=expelled,
            owed=self.owed,
            unaudited=self.unaudited,
            returned=attempt.returned,  # [B3]
            candidates=self.entrance.candidates,  # [J4, J5]
            probed=fields_of(self.reduced.probed),
            admitted=self.entrance.admitted,  # [J7]
            incarnation=state.incarnation,  # [B5]
            began=context.began,
            aggregates=aggregates_digest(self.reduced.digests),
            content=self.content,
            rekeyed=attempt.rekeyed(leaving=trials.banned),  # [U6]
            changed=state.roster.changed,  # [J8]
            shortened=self.moved.shortened,
        )

    @cached_property
    def entrance(self) -> Entrance:
        """Who goes on, in or out at the door (SPEC J4, J5, J7)."""
        attempt, roster, step = self.attempt, self.attempt.context.state.roster, self.attempt.context.state.step
        run, tools = attempt.context.peer.run, attempt.context.peer.tools
        listed = [ticket for said in attempt.commits.values() for ticket in said_as(said, Commit).tickets]
        after, known = len(roster.members) + len(attempt.returned), roster.known | attempt.admitted
        back = sum(PeerId(returned.member) in roster.came_in for returned in attempt.returned)
        return decide(
            roster.door,
            step,
            self.reduced.probed.keys(),
            best_tickets(run.id, roster.door, listed, known, tools) if roster.door.is_lottery(step) else [],
            most=max(
                0, min(most_members(run.parameters) - after, roster.door.most_admitted(len(roster.members)) - back)
            ),
            out=self.trials.banned | self.reduced.signed_two,
            lenient=attempt.context.began,
        )

    @cached_property
    def content(self) -> bool:
        """Whether the record names the content of the state after the step (SPEC U5)."""
        attempt = self.attempt
        every, step = attempt.context.peer.run.parameters.content_every, attempt.context.state.step
        joined = bool(attempt.returned or self.entrance.admitted)
        return names_content(every, step, updated=self.moved.updated, returned=joined)

    @cached_property
    def model(self) -> Digest:
        """Digest of the state after the step, as the record names it (SPEC U5)."""
        state = self.attempt.context.state
        if self.content:
            return self.attempt.context.peer.work.digest(self.moved.training)
        aggregates = aggregates_digest(self.reduced.digests)
        return chained_state(state.model, aggregates, self.moved.factor, state.scales.updates + 1)

    @property
    def audit_record(self) -> AuditRecord[T]:
        """Everything that audits of this step will need (SPEC K1)."""
        attempt, state = self.attempt, self.attempt.context.state
        return AuditRecord(
            step=state.step,
            training=state.training,
            model=state.model,
            content=state.content,
            seed_randomness=state.earlier_randomness,
            owners=attempt.owners,
            bounds=attempt.context.roles.bounds,
            tau=state.scales.tau,
            aggregate_D=self.reduced.aggregate_D,
            projection_key=self.reduced.projection_key,
            attempt=attempt.number,
            commits={contributor: attempt.commits[contributor] for contributor in attempt.roots},
            reports={contributor: self.reported.announced[contributor] for contributor in attempt.roots},
            clips={owner: self.reduced.clipped.clips[owner] for owner in sorted(set(attempt.owners))},
            accuses=self.accuses,
            probed=self.reduced.probed,
        )

    @property
    def next_state(self) -> State[T]:
        """Common state at the start of the next step, whose Commits sign the record (SPEC U2)."""
        state, peer, record = self.attempt.context.state, self.attempt.context.peer, self.record
        needed = {state.step - 1, *(audit.step for audit in (*state.pending_audits.owed, *self.owed))}
        kept = {step: old for step, old in state.audit_records.items() if step in needed}
        kept[state.step] = self.audit_record
        common = state.common.after(record, peer.run)
        return State.after(record, state.roster, common, self.moved.training, self.model, kept, peer.tools)
