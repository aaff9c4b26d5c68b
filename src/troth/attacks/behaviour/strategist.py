"""Strategic colluders: one head with every lie at hand, which at each Commit takes the one with the most gain for its risk.

It looks at public state only: Commits, members gone and banned, the audits that the last coins drew, the members left. The
lies stand in a table: when each applies, what it gains and what it risks.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from troth.attacks.behaviour.absence import VanishedError
from troth.attacks.behaviour.burden import Complainer, PaddingJuror, PadVotes
from troth.attacks.behaviour.cover_once import CoveredOnce, OnceCoveringColluder
from troth.attacks.behaviour.owners import ShiftingOwner
from troth.attacks.behaviour.public import contributors_of
from troth.attacks.behaviour.reroll import Reroller
from troth.attacks.behaviour.returns import Doorkeeper
from troth.attacks.colluder import ColludingChannel, Collusion, LiarsChannel
from troth.attacks.gradient.base import GradientAttack
from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import Said
from troth.protocol.core.roles import draw_roles
from troth.protocol.core.run import effective_validators
from troth.protocol.core.state import State
from troth.protocol.wire.messages import Announced, Commit, Message, Phase


@dataclass(frozen=True)
class Outlook:
    """Knowledge of the head at the start of a step, as counts."""

    liars: int  # colluders that are still members
    members: int
    contributing: int  # colluders among the contributors
    contributors: int
    gone: int  # members that left without a ban
    watched: int  # colluders that an honest member audits now for the step before
    freezes: bool  # whether the run's own rule stops the model once all colluders are gone (SPEC G2)

    @property
    def honest(self) -> int:
        return self.members - self.liars


@dataclass(frozen=True)
class Lie:
    """Row of the table. Gain and risk count updates of the model: those spoilt, and those given up for it."""

    name: str
    applies: Callable[[Outlook], bool]
    gain: Callable[[Outlook], float]
    risk: Callable[[Outlook], float]

    def score(self, outlook: Outlook) -> float:
        return self.gain(outlook) - self.risk(outlook)


COVER, REROLL, BLOCK, OUTVOTE, LEAVE, COMPLAIN, PAD, WRONG = (
    "cover up to the edge",
    "cover, and have the audit drawn again",
    "keep returns away",
    "vote the honest out",
    "leave",
    "complain",
    "pad votes",
    "wrong aggregate",
)

LIES = (
    # As many votes as it takes: nothing is worth more, and nobody is left to punish it.
    Lie(OUTVOTE, lambda o: 2 * o.liars > o.members, lambda o: 100.0 * o.honest, lambda _: 0.0),
    # Each honest peer that stays away brings the majority nearer; nobody can prove anything.
    Lie(BLOCK, lambda o: o.gone > 0 and 2 * (o.liars + o.gone) >= o.members, lambda o: 20.0 * o.gone, lambda _: 0.0),
    # No lie, and nobody to ban: it is worth more than a cover by few, less than one by many.
    Lie(LEAVE, lambda o: o.freezes, lambda _: 10.0, lambda _: 0.0),
    # One covered step costs a few honest ones; an audit that honest members draw ends the coalition.
    Lie(
        COVER,
        lambda o: 2 * o.contributing > o.contributors / 2,
        lambda o: 4.0 * o.contributing,
        lambda o: 2.0 * o.liars,
    ),
    # The same with a second draw: it costs one colluder its place, and not all of them theirs.
    Lie(
        REROLL,
        lambda o: 2 * o.contributing > o.contributors / 2 and o.liars > 2,
        lambda o: 4.0 * o.contributing,
        lambda _: 1.0,
    ),
    # A colluder that is found now has nothing to lose: an attempt and a trial for everyone.
    Lie(WRONG, lambda o: o.watched > 0, lambda _: 1.5, lambda _: 0.0),
    Lie(PAD, lambda o: o.watched > 0 and o.liars > 1, lambda o: 1.0 + 0.2 * o.liars, lambda _: 0.0),
    # Attempts without end, for as many as own parts.
    Lie(COMPLAIN, lambda o: o.contributing > 0, lambda o: 0.5 * o.contributing, lambda o: 0.5 * o.contributing),
)


def best_lie(outlook: Outlook) -> str | None:
    """Lie with the most gain over its risk; None if nothing is worth it."""
    fitting = [lie for lie in LIES if lie.applies(outlook) and lie.score(outlook) > 0]
    return max(fitting, key=lambda lie: lie.score(outlook)).name if fitting else None


class Head:
    """Decides for all colluders, once for each step."""

    def __init__(self, collusion: Collusion) -> None:
        self._run = collusion.run
        self._colluders = collusion.colluders
        self._taken: dict[int, str | None] = {}
        self.moves: Counter[str] = Counter()

    def decide(self, step: int, state: State[object], commits: Mapping[PeerId, Announced]) -> None:
        if step in self._taken:
            return
        lie = self._taken[step] = best_lie(self._outlook(state, commits))
        if lie is not None:
            self.moves[lie] += 1

    def takes(self, *lies: str) -> Callable[[int], bool]:
        return lambda step: self._taken.get(step) in lies

    def _outlook(self, state: State[object], commits: Mapping[PeerId, Announced]) -> Outlook:
        roster = state.roster
        contributors = contributors_of(commits, roster.members)
        audits = draw_roles(self._run, roster, state.randomness, state.pending_audits).audits
        watched = {
            audit.target for auditor, theirs in audits.items() if auditor not in self._colluders for audit in theirs
        }
        return Outlook(
            liars=len(self._colluders & set(roster.members)),
            members=len(roster.members),
            contributing=len(self._colluders & set(contributors)),
            contributors=len(contributors),
            gone=len(roster.away),
            watched=len(self._colluders & watched & set(roster.members)),
            freezes=self._freezes(state),
        )

    def _freezes(self, state: State[object]) -> bool:
        rest = replace(state.roster, members=tuple(p for p in state.roster.members if p not in self._colluders))
        validators = effective_validators(len(rest.members), self._run.parameters.validators)
        return not rest.moves(len(rest.members), len(rest.members) - validators)


class Strategic(ColludingChannel):
    """A member of the coalition: wraps every behaviour around the next, each active when the head says so."""

    def __init__(self, honest: LiarsChannel, me: PeerId, collusion: Collusion) -> None:
        self._head: Head = collusion.board.setdefault("strategist", Head(collusion))
        self._leaves = self._head.takes(LEAVE)

        def when(*lies: str, attack: GradientAttack | None = None) -> Collusion:
            taken = self._head.takes(*lies)
            return replace(
                collusion, attack=attack or collusion.attack, active=lambda step: collusion.active(step) and taken(step)
            )

        edge = CoveredOnce("edge")
        channel: LiarsChannel = Reroller(honest, me, when(REROLL))
        channel = PaddingJuror(channel, me, when(PAD, attack=PadVotes(ballots=collusion.attack.ballots)))
        channel = Complainer(channel, me, when(COMPLAIN))
        channel = ShiftingOwner(channel, me, when(WRONG))
        channel = OnceCoveringColluder(channel, me, when(COVER, REROLL, attack=edge))
        channel = Doorkeeper(channel, me, when(BLOCK, OUTVOTE))
        super().__init__(channel, me, collusion)

    def _instead(self, slot: Slot, message: Message) -> Message:
        if not isinstance(message, Commit) and self._leaves(slot.step):
            raise VanishedError("left the run")
        return message

    def _heard(self, slot: Slot, announced: Said) -> None:
        if slot.phase == Phase.COMMIT and self._active(slot.step):
            assert self._collusion.state is not None
            self._head.decide(slot.step, self._collusion.state(), announced)


@dataclass(frozen=True)
class Strategist(GradientAttack, behaves=Strategic):
    """act as one, with every lie at hand: each step the one that gains most for what it risks"""

    ballots: int = 500  # that a vote is padded with
    covers: ClassVar[bool] = True
