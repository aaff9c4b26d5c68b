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
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from troth.aggregation import centered_clip
from troth.attacks.behaviour.accusers import FalseAccuser
from troth.attacks.behaviour.coins import CoinGrinder
from troth.attacks.behaviour.cover import CoveredAggregate, CoveringColluder
from troth.attacks.behaviour.owners import ShiftingOwner, WithholdingOwner
from troth.attacks.behaviour.public import audits_among_committed, contributors_of
from troth.attacks.colluder import ColludingChannel, Collusion, LiarsChannel
from troth.attacks.gradient.base import GradientAttack
from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import AttemptView, Said
from troth.protocol.core.roster import MOST_STRIKES
from troth.protocol.core.run import Run
from troth.protocol.wire.messages import Accuse, Announced, Message, Phase

# P contributors, D coordinates

COVER, WRONG, WITHHOLD, COIN = "covered aggregate", "wrong aggregate", "withheld aggregate", "coin kept"


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
            move = WRONG
        else:
            move = COVER if len(self._colluders & commits.keys()) > 1 else WITHHOLD
        self._risks[step] = (taker, move)
        self.moves[move] += 1

    def takes(self, peer: PeerId, move: str) -> Callable[[int], bool]:
        return lambda step: self._risks.get(step) == (peer, move)

    def lies(self, step: int) -> bool:
        """Whether an audit of this step would find something."""
        return step in self._risks and self._risks[step][1] == COVER

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
        free = [peer for peer in sorted(self._coins[slot.step, slot.attempt]) if self._may_keep(peer)]
        for peer in free:
            if not self._found(slot, liar, {who: coin for who, coin in coins.items() if who != peer}):
                self._strikes[peer] += 1
                self.moves[COIN] += 1
                return peer
        self._lost[slot.step + 1] = liar
        return None

    def _may_keep(self, peer: PeerId) -> bool:
        return self._strikes[peer] < MOST_STRIKES - 1

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
        channel = WithholdingOwner(channel, me, replace(collusion, active=takes(me, WITHHOLD)))
        channel = ShiftingOwner(channel, me, replace(collusion, active=takes(me, WRONG)))
        channel = _Cover(channel, me, replace(alone, active=takes(me, COVER)))
        channel = FalseAccuser(channel, me, replace(collusion, active=self._head.outvote))
        super().__init__(channel, me, collusion)

    def _heard(self, slot: Slot, announced: Said) -> None:
        if slot.phase == Phase.COMMIT:
            self._head.hear_commits(slot.step, announced)


def head(collusion: Collusion) -> Coordinator:
    """The coordinator that all members of this collusion share."""
    coordinator: Coordinator = collusion.board.setdefault(
        "coordinator", Coordinator(collusion.run, collusion.colluders)
    )
    return coordinator


@dataclass(frozen=True)
class Adapt(GradientAttack, behaves=Adaptive, positive=("shift",)):
    """act as one: in each step the liar with the least to lose plays the worst part that the public state allows"""

    shift: float = 1.0  # how far the aggregate of a step's liar is off, in radii over the number of contributors
    covers: ClassVar[bool] = True
