"""Gradients as strangers hand them in: computed with everyone else's in one call, or made up, old, copied, forged."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from troth.attacks import AttackSchedule, Coalition
from troth.crypto import PeerId, Seed, derive, stream
from troth.simulation.lockstep.door.party import Party
from troth.simulation.lockstep.door.specs import Copies, Doing, Old, Strangers, Zeros
from troth.simulation.lockstep.door.stranger import Stranger
from troth.simulation.lockstep.pool import AskGradient, GradientPool
from troth.training import Problem
from troth.training.work import finite_or_zero

# B liars, H honest peers, D coordinates


class HandIns:
    """Answers `AskGradient` in a run with an open door. Honest strangers' gradients come from the pool, and so does what liars
    compute; what a stranger saves itself is not computed."""

    def __init__(
        self, problem: Problem, pool: GradientPool, parties: Sequence[Party], liars: frozenset[PeerId], seed: Seed
    ) -> None:
        self._problem = problem
        self._pool = pool
        self._liars = liars
        self._seed = seed
        self._strangers = {stranger.me: stranger for party in parties for stranger in party.strangers}
        self._kinds = {stranger.me: party.kind for party in parties for stranger in party.strangers}
        self._coalitions = [
            (party, Coalition([party.kind.lie()], AttackSchedule(), party.numbers, derive(seed, "party", number)))
            for number, party in enumerate(parties)
            if party.kind.lies
        ]
        for _, coalition in self._coalitions:
            coalition.layout = problem.layout
        self._old: dict[PeerId, Tensor] = {}  # the only gradient that somebody computed

    def answer(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, Tensor]:
        faking = [peer for peer in asks if self._doing(peer) is Doing.FAKE]
        computing = {peer: ask for peer, ask in asks.items() if peer not in faking or self._begins(peer)}
        rows = self._pool.answer(computing) if computing else {}
        step = next(iter(asks.values())).step
        honest = [peer for peer in rows if peer not in self._liars and not asks[peer].probing]
        made_up = {peer: self._faked(peer, asks[peer], rows, honest) for peer in faking}
        forged = self._forged(step, asks, rows, honest)
        changed = [peer for peer in (*made_up, *forged) if not asks[peer].probing]
        self._pool.attackers |= {self._strangers[peer].number for peer in changed}
        answers = {**rows, **made_up, **forged}
        return {peer: answers[peer] for peer in asks}

    def _doing(self, peer: PeerId) -> Doing:
        stranger: Stranger | None = self._strangers.get(peer)
        return Doing.WORK if stranger is None else stranger.doing

    def _begins(self, peer: PeerId) -> bool:
        return isinstance(self._kinds[peer], Old) and peer not in self._old

    def _faked(self, peer: PeerId, ask: AskGradient, rows: Mapping[PeerId, Tensor], honest: Sequence[PeerId]) -> Tensor:
        kind: Strangers = self._kinds[peer]
        like_D = ask.training.parameters_D
        if isinstance(kind, Zeros):
            return torch.zeros_like(like_D)
        if isinstance(kind, Old):
            return self._old.setdefault(peer, rows[peer] if peer in rows else torch.zeros_like(like_D))
        if isinstance(kind, Copies) and honest:
            return rows[honest[0]].clone()
        return torch.from_numpy(stream(self._seed, "noise", peer, ask.step).normal(len(like_D))).to(like_D)

    def _forged(
        self, step: int, asks: Mapping[PeerId, AskGradient], rows: Mapping[PeerId, Tensor], honest: Sequence[PeerId]
    ) -> dict[PeerId, Tensor]:
        """Rows of the members that attack, party by party, knowing those of honest members."""
        forged: dict[PeerId, Tensor] = {}
        for party, coalition in self._coalitions:
            liars = [s for s in party.strangers if s.me in rows and s.doing is Doing.ATTACK]
            if liars and honest:
                own_BD = torch.stack([self._own(step, coalition, s.number, asks[s.me], rows[s.me]) for s in liars])
                honest_HD = torch.stack([rows[peer] for peer in honest])
                sent_BD = coalition.gradients(step, own_BD, honest_HD, [stranger.number for stranger in liars])
                forged |= {stranger.me: row_D for stranger, row_D in zip(liars, sent_BD, strict=True)}
        return forged

    def _own(self, step: int, coalition: Coalition, number: int, ask: AskGradient, row_D: Tensor) -> Tensor:
        """The liar's own gradient: the computed one, unless its attack poisons the batch."""
        batch = self._problem.batch(ask.seed)
        poisoned = coalition.batch(step, self._problem.task, batch, number)
        if poisoned is batch:
            return row_D
        return finite_or_zero(self._problem.gradients(ask.training.parameters_D, [poisoned])[1][0])
