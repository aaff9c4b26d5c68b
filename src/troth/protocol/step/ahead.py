"""Looking ahead: gradients that will probably be wanted, named to the training side as soon as their inputs are known.

Audits and, for most members, a gradient follow from the roles at the start of a step. A contributor's next seed comes from a
draw that is known then too (SPEC R2), and the next model follows from the aggregates and the Commits (SPEC U3): so the next
gradient can be computed beside Reveal, Report, Accuse and the record. It is a pure function of public inputs. Nobody hears of it
before Commit, and if the attempt is discarded, or the next roles ask for no gradient, it was computed in vain.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import msgspec
from torch import Tensor

from troth.crypto import Seed
from troth.protocol.core.roles import gradient_seed
from troth.protocol.core.scales import update_factor
from troth.protocol.step.attempt import Attempt, Clipped
from troth.protocol.step.context import StepContext
from troth.protocol.wire.messages import MOST_MILLISECONDS, Measured

# D coordinates
T = TypeVar("T")


@dataclass(frozen=True)
class NextModel(Generic[T]):
    """The training state that an attempt's aggregates lead to, if nothing comes in between; computed once, when it is needed."""

    attempt: Attempt[T]
    aggregate_D: Tensor
    norm: float  # of the aggregate

    @property
    def contributors_suffice(self) -> bool:
        """Whether enough members take part and contribute for the model to move (SPEC G2)."""
        return self.attempt.context.state.roster.moves(len(self.attempt.members), len(self.attempt.roots))

    @cached_property
    def factor(self) -> float:
        """Factor of the aggregate: no update is longer than U3 allows."""
        return update_factor(self.norm, self.attempt.context.state.scales.longest_update(self.attempt.length))

    @cached_property
    def training(self) -> T:
        """The optimizer's step."""
        state, peer = self.attempt.context.state, self.attempt.context.peer
        update_D = peer.tools.scaled(self.aggregate_D, self.factor)
        return peer.work.update(state.training, update_D, state.scales.updates)


def expect_this_step(context: StepContext[T]) -> None:
    """Name the gradients that this peer's roles ask for; a validator's own, begun before roles were drawn, is none of them."""
    mine = [(context.state.training, own_seed(context))] if context.contributes else []
    context.peer.work.expect([*mine, *audits_of(context)])


def expect_next_step(attempt: Attempt[T], clipped: Clipped, *, audits: bool) -> NextModel[T] | None:
    """Name the next step's gradient, behind audits that are still to be made; None while an aggregate is missing."""
    if clipped.aggregate_D is None:
        return None
    context, following = attempt.context, NextModel(attempt, clipped.aggregate_D, clipped.norm)
    if context.peer.work.looks_ahead and following.contributors_suffice and not context.peer.observing:
        seed = gradient_seed(context.state.randomness, context.peer.me)
        context.peer.work.expect([*(audits_of(context) if audits else ()), (following.training, seed)])
    return following


def own_seed(context: StepContext[T]) -> Seed:
    """This peer's public seed in this step, from the draw before last (SPEC R2)."""
    return gradient_seed(context.state.earlier_randomness, context.peer.me)


def measured(context: StepContext[T]) -> Measured | None:
    """Times to announce (SPEC Q8): waiting for a gradient that was begun before says little about how long one takes."""
    peer = context.peer
    times, ahead_ms = peer.noticed.latencies(context.state.step), math.ceil(1000 * peer.work.took_ahead())
    return times and msgspec.structs.replace(times, compute=max(times.compute, min(ahead_ms, MOST_MILLISECONDS)))


def audits_of(context: StepContext[T]) -> Sequence[tuple[T, Seed]]:
    """Gradients of the last step that this peer is to recompute; older ones are rare, and their states may lie on a disk."""
    last = context.state.audit_records.get(context.state.step - 1)
    if last is None or context.peer.observing:
        return ()
    targets = [due.target for due in context.roles.audits.get(context.peer.me, ()) if due.step == last.step]
    return [(last.training, gradient_seed(last.seed_randomness, target)) for target in targets]
