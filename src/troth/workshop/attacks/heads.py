"""Coordinated colluders: one head reads public state and gives each of them the most harmful lie at the least risk.

It knows what any member knows: the contributors, which own parts, and the auditors, from the Commits; open coins, and with
them the next audits; and, as every coalition does, its members' own secrets. From that it decides:

- Only one colluder takes a risk in a step, the one with the least to lose: first one whose lie of the step before an honest
  auditor is about to find, then the one with the most strikes.
- While others are left to look away, it shifts its aggregate and absorbs the gap in its own report: nothing public shows it.
  One that is lost anyway announces any aggregate, which costs everyone an attempt and a trial. The last colluder keeps its
  aggregate to itself, which costs an attempt too, and leaves without a ban.
- Coins B are opened last. If they would have an honest member audit the lie, and without one colluder's coin everyone audits
  and a colluder gets that very lie, that one keeps its coin back, at most twice each: the third strike expels.
- As auditors and jurors they always shield each other. They accuse the innocent only where they could win the vote: a
  minority cannot, and does not.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
import torch
from torch import Tensor

from troth.clip.fast import centered_clip
from troth.crypto import PeerId, Slot, blob_digest
from troth.protocol.core.channel import AttemptView, Disclose, Exchange, Said
from troth.protocol.core.roles import draw_roles
from troth.protocol.core.roster import MOST_STRIKES
from troth.protocol.core.run import Run, effective_validators
from troth.protocol.core.state import State
from troth.protocol.wire.messages import Accusation, Accuse, Announced, ChargeKind, Commit, Message, Phase
from troth.workshop.attacks.base import Choose, ColludingChannel, Collusion, GradientAttack, LiarsChannel
from troth.workshop.attacks.cover import CoveredAggregate, CoveredOnce, CoveringColluder, OnceCoveringColluder
from troth.workshop.attacks.gradient_lies import SignFlip
from troth.workshop.attacks.roles import (
    BlockingDoorkeeper,
    CoinGrinder,
    FalseAccuser,
    PaddingJuror,
    PadVotes,
    ShiftingOwner,
    VanishedError,
    WithholdingOwner,
    audits_among_committed,
    audits_to_come,
    contributors_of,
    owners_now,
)

# P contributors, D coordinates

COVERED, WRONG_AGGREGATE, WITHHELD, COIN = "covered aggregate", "wrong aggregate", "withheld aggregate", "coin kept"


class Coordinator:
    """Knowledge and decisions of the coalition. All its members share one; an answer, once given, stays."""

    def __init__(self, run: Run, colluders: frozenset[PeerId]) -> None:
        self._run = run
        self._colluders = colluders
        self._followers: dict[
            PeerId, Callable[[int], bool]
        ] = {}  # members, and the steps in which each does as it says
        self._commits: dict[int, Mapping[PeerId, Announced]] = {}  # by step
        self._risks: dict[int, tuple[PeerId, str]] = {}  # by step: the member that takes the risk, and its move
        self._lost: dict[int, PeerId] = {}  # by step: the member that is about to be found
        self._coins: dict[tuple[int, int], dict[PeerId, bytes]] = defaultdict(dict)  # of members, by step and attempt
        self._keeping: dict[tuple[int, int], PeerId | None] = {}  # members that do not open their coin
        self._strikes: Counter[PeerId] = Counter()
        self.moves: Counter[str] = Counter()

    def join(self, peer: PeerId, active: Callable[[int], bool]) -> None:
        self._followers[peer] = active

    def hear_commits(self, step: int, commits: Mapping[PeerId, Announced]) -> None:
        """Contributors are known now: choose the member that takes the risk of this step, and its move."""
        if step in self._commits:
            return
        self._commits = {old: said for old, said in self._commits.items() if old >= step - 1} | {step: commits}
        contributors = contributors_of(commits)
        present = [peer for peer, active in self._followers.items() if peer in contributors and active(step)]
        if not present:
            return
        taker = max(present, key=lambda peer: (peer == self._lost.get(step), self._strikes[peer], peer))
        if taker == self._lost.get(step) or self.outvote(step):
            move = WRONG_AGGREGATE
        else:
            move = COVERED if len(self._colluders & commits.keys()) > 1 else WITHHELD
        self._risks[step] = (taker, move)
        self.moves[move] += 1

    def takes(self, peer: PeerId, move: str) -> Callable[[int], bool]:
        return lambda step: self._risks.get(step) == (peer, move)

    def lies(self, step: int) -> bool:
        """Whether an audit of this step would find something."""
        return step in self._risks and self._risks[step][1] == COVERED

    def outvote(self, step: int) -> bool:
        """Whether colluders are the majority of the jury."""
        commits = self._commits.get(step, {})
        return 2 * len(self._colluders & commits.keys()) > len(commits)

    # Coins B

    def tell_coin(self, slot: Slot, peer: PeerId, coin: bytes) -> None:
        self._coins[slot.step, slot.attempt][peer] = coin

    def keeps_coin(self, slot: Slot, peer: PeerId, said: Mapping[PeerId, Announced]) -> bool:
        key = (slot.step, slot.attempt)
        if key not in self._keeping:
            others = {who: a.message.coin for who, a in said.items() if isinstance(a.message, Accuse)}
            self._keeping[key] = self._keeper(slot, {**others, **self._coins[key]})
        return self._keeping[key] == peer

    def _keeper(self, slot: Slot, coins: Mapping[PeerId, bytes]) -> PeerId | None:
        """Member whose coin, if not opened, leaves the audit of the lie to a colluder."""
        liar = self._risks[slot.step][0]
        self._lost.pop(slot.step + 1, None)
        if not self._found(slot, liar, coins):
            return None
        ours = sorted(self._coins[slot.step, slot.attempt])
        for peer in (peer for peer in ours if self._strikes[peer] < MOST_STRIKES - 1):
            if not self._found(slot, liar, {who: coin for who, coin in coins.items() if who != peer}):
                self._strikes[peer] += 1
                self.moves[COIN] += 1
                return peer
        self._lost[slot.step + 1] = liar
        return None

    def _found(self, slot: Slot, liar: PeerId, coins: Mapping[PeerId, bytes]) -> bool:
        """Whether the next roles, drawn as everyone will, have an honest member audit the liar."""
        commits = self._commits.get(slot.step, {})
        everyone = bool(commits.keys() - coins.keys()) or slot.step in self._lost  # a ban, too, has everyone audit
        audits = audits_among_committed(self._run, slot, commits, coins, everyone=everyone)
        return any(target == liar and auditor not in self._colluders for auditor, target in audits)


class _Cover(CoveringColluder):
    """Shifts what the clipped centre would be, by so little that its own report can absorb all of it (SPEC V2)."""

    def _wrong(self, slot: Slot, part: int) -> Tensor:
        rows_PD = torch.stack(self._rows[part])
        tau = self._tau(rows_PD.shape[1])
        center_D = centered_clip(rows_PD, tau=tau)
        length = float(torch.linalg.vector_norm(center_D)) or 1.0
        shifted_D: Tensor = center_D - center_D * (self._collusion.attack.shift * tau / len(rows_PD) / length)
        return shifted_D


class _Keeper(CoinGrinder):
    """Opens its coin last, or not, as the head decides."""

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        if isinstance(message, Accuse):
            head(self._collusion).tell_coin(slot, self._me, message.coin)
        return await super().announce(slot, message, view)

    def _would_be_audited(self, slot: Slot, said: Accuse, honest: Mapping[PeerId, Announced]) -> bool:
        return head(self._collusion).keeps_coin(slot, self._me, honest)


class Adaptive(ColludingChannel):
    """A member of the coalition: wraps every behaviour around the next, each active when the head says so."""

    def __init__(self, honest: LiarsChannel, me: PeerId, collusion: Collusion) -> None:
        self._head = head(collusion)
        self._head.join(me, collusion.active)
        takes = self._head.takes
        attack = CoveredAggregate(collusion.attack.shift)
        alone = replace(collusion, attack=attack, colluders=frozenset({me}))  # no other absorbs
        channel: LiarsChannel = _Keeper(honest, me, replace(collusion, active=self._head.lies))
        channel = WithholdingOwner(channel, me, replace(collusion, active=takes(me, WITHHELD)))
        channel = ShiftingOwner(channel, me, replace(collusion, active=takes(me, WRONG_AGGREGATE)))
        channel = _Cover(channel, me, replace(alone, active=takes(me, COVERED)))
        channel = FalseAccuser(channel, me, replace(collusion, active=self._head.outvote))
        super().__init__(channel, me, collusion)

    def _heard(self, slot: Slot, announced: Said) -> None:
        if slot.phase == Phase.COMMIT:
            self._head.hear_commits(slot.step, announced)


def head(collusion: Collusion) -> Coordinator:
    """The coordinator that all members of this collusion share."""
    return collusion.shared("coordinator", lambda: Coordinator(collusion.run, collusion.colluders))


@dataclass(frozen=True)
class Adapt(GradientAttack, behaves=Adaptive, positive=("shift",)):
    """act as one: in each step the liar with the least to lose plays the worst part that the public state allows"""

    shift: float = 1.0  # how far the aggregate of a step's liar is off, in radii over the number of contributors
    covers: ClassVar[bool] = True


# Rerolls: where the coins would have an honest member audit a liar, the attempt is made void, and drawn again.
#
# A liar that owns a part accuses a contributor of a wrong report and discloses nothing. There is nothing to judge by, so it
# is out, unpunished, and the attempt is repeated with fresh coins. Each time costs one liar its place, or a return; the lie
# that was about to be found stays in the model.


@dataclass
class Rerolls:
    """Decisions of the coalition: once for each attempt, by the member that comes first."""

    chosen: dict[tuple[int, int], PeerId | None] = field(default_factory=dict)
    uses: Counter[PeerId] = field(default_factory=Counter)
    coins: dict[tuple[int, int], dict[PeerId, bytes]] = field(default_factory=dict)  # liars', by step and attempt


class Reroller(ColludingChannel):
    """Speaks last in Accuse, and makes the attempt void if it is its turn."""

    _reports: Mapping[PeerId, Announced] = MappingProxyType({})

    @property
    def _rerolls(self) -> Rerolls:
        return self._collusion.shared("rerolls", Rerolls)

    def _at_last(self, slot: Slot, message: Message) -> Choose | None:
        if not isinstance(message, Accuse):
            return None
        self._rerolls.coins.setdefault((slot.step, slot.attempt), {})[self._me] = message.coin
        return lambda others: self._choose(slot, message, others)

    def _heard(self, slot: Slot, announced: Said) -> None:
        if slot.phase == Phase.REPORT:
            self._reports = announced

    def _choose(self, slot: Slot, said: Accuse, others: Mapping[PeerId, Announced]) -> Accuse:
        key = (slot.step, slot.attempt)
        if key not in self._rerolls.chosen:
            self._rerolls.chosen[key] = self._roller(slot, others)
        if self._rerolls.chosen[key] != self._me:
            return said
        part = owners_now(self._collusion, self._members).index(self._me)
        honest = [p for p in contributors_of(self._commits, self._members) if p not in self._colluders]
        victim = next((peer for peer in honest if peer in self._reports), None)
        if victim is None:
            return said
        named = blob_digest(self._reports[victim].envelope.payload)  # else it is not heard (SPEC E2)
        false = Accusation(victim, ChargeKind.REPORT, slot.step, part, named)
        return msgspec.structs.replace(said, accusations=(*said.accusations, false))

    def _roller(self, slot: Slot, others: Mapping[PeerId, Announced]) -> PeerId | None:
        """Owner of a part that has done it least often, if an honest member would audit a liar."""
        ours = self._rerolls.coins[slot.step, slot.attempt]
        coins = {peer: a.message.coin for peer, a in others.items() if isinstance(a.message, Accuse)} | ours
        found = {
            target
            for auditor, target in audits_to_come(self._collusion, slot, self._commits, self._members, coins)
            if target in self._colluders and auditor not in self._colluders
        }
        owning = sorted(ours.keys() & set(owners_now(self._collusion, self._members)))
        if not found or not owning:
            return None
        chosen = min(owning, key=lambda peer: (self._rerolls.uses[peer], peer not in found, peer))
        self._rerolls.uses[chosen] += 1
        return chosen

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Disclose) and self._rerolls.chosen.get((slot.step, slot.attempt)) == self._me:
            blobs = replace(blobs, mine={})  # makes the attempt void
        return await super().exchange(slot, blobs, view)


@dataclass(frozen=True)
class Reroll(SignFlip, behaves=Reroller):
    """flip signs, and where the draw has an honest member audit a liar, make the attempt void to have it drawn again"""


# Strategic colluders: one head with every lie at hand, which at each Commit takes the one with the most gain for its risk.
#
# It looks at public state only: Commits, members gone and banned, the audits that the last coins drew, the members left. The
# lies stand in a table: when each applies, and what it is worth.


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


@dataclass(frozen=True)
class Lie:
    """Row of the table. Worth counts updates of the model: those spoilt, less those given up for it."""

    name: str
    applies: Callable[[Outlook], bool]
    worth: Callable[[Outlook], float]


COVER, REROLL, BLOCK, OUTVOTE, LEAVE, PAD, WRONG = (
    "cover up to the edge",
    "cover, and have the audit drawn again",
    "keep returns away",
    "vote the honest out",
    "leave",
    "pad votes",
    "wrong aggregate",
)

LIES = (
    # As many votes as it takes: nothing is worth more, and nobody is left to punish it.
    Lie(OUTVOTE, lambda o: 2 * o.liars > o.members, lambda o: 100.0 * (o.members - o.liars)),
    # Each honest peer that stays away brings the majority nearer; nobody can prove anything.
    Lie(BLOCK, lambda o: o.gone > 0 and 2 * (o.liars + o.gone) >= o.members, lambda o: 20.0 * o.gone),
    # No lie, and nobody to ban: it is worth more than a cover by few, less than one by many.
    Lie(LEAVE, lambda o: o.freezes, lambda _: 10.0),
    # One covered step costs a few honest ones; an audit that honest members draw ends the coalition.
    Lie(COVER, lambda o: 2 * o.contributing > o.contributors / 2, lambda o: 4.0 * o.contributing - 2.0 * o.liars),
    # The same with a second draw: it costs one colluder its place, and not all of them theirs.
    Lie(
        REROLL,
        lambda o: 2 * o.contributing > o.contributors / 2 and o.liars > 2,
        lambda o: 4.0 * o.contributing - 1.0,
    ),
    # A colluder that is found now has nothing to lose: an attempt and a trial for everyone.
    Lie(WRONG, lambda o: o.watched > 0, lambda _: 1.5),
    Lie(PAD, lambda o: o.watched > 0 and o.liars > 1, lambda o: 1.0 + 0.2 * o.liars),
)


def best_lie(outlook: Outlook) -> str | None:
    """Lie that is worth most; None if nothing is worth it."""
    fitting = [lie for lie in LIES if lie.applies(outlook) and lie.worth(outlook) > 0]
    return max(fitting, key=lambda lie: lie.worth(outlook)).name if fitting else None


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
        self._head = collusion.shared("strategist", lambda: Head(collusion))
        self._leaves = self._head.takes(LEAVE)

        def when(*lies: str, attack: GradientAttack | None = None) -> Collusion:
            taken = self._head.takes(*lies)
            return replace(
                collusion, attack=attack or collusion.attack, active=lambda step: collusion.active(step) and taken(step)
            )

        edge = CoveredOnce("edge")
        channel: LiarsChannel = Reroller(honest, me, when(REROLL))
        channel = PaddingJuror(channel, me, when(PAD, attack=PadVotes(ballots=collusion.attack.ballots)))
        channel = ShiftingOwner(channel, me, when(WRONG))
        channel = OnceCoveringColluder(channel, me, when(COVER, REROLL, attack=edge))
        channel = BlockingDoorkeeper(channel, me, when(BLOCK, OUTVOTE))
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
