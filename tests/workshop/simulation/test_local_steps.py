"""Runs whose contributions are walks of several local steps. [R2]"""

import dataclasses
import re
from copy import copy
from typing import Any

import pytest
from torch import Tensor

from tests.protocol.small_runs import APART, SMALL, finished
from troth.crypto import PeerId, Seed
from troth.errors import OperatorError
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import verify_ban
from troth.protocol.core.records import decode_record
from troth.training.optimizers import State
from troth.training.work import RATE, Compute, Training
from troth.workshop.simulation import ProtocolSimulation, Scenario
from troth.workshop.simulation.gradients import PooledWork

WALKS = dataclasses.replace(APART, local_steps=4)


@pytest.fixture(scope="module")
def walked() -> ProtocolSimulation:
    return finished(WALKS)


def test_liars_are_banned_as_ever_and_anyone_recomputes_their_walks(walked: ProtocolSimulation) -> None:
    """[R2, D1, E3]"""
    assert walked.agreement
    assert {ban.peer for ban in walked.bans} == {*walked.byzantine}
    evidence = walked.evidence[0]
    proof = verify_ban(evidence.text, walked.run.id)
    assert recompute(proof, evidence.training) is Recomputed.CONFIRMED


@pytest.mark.long
def test_the_trace_is_the_same_when_nothing_is_shared(walked: ProtocolSimulation) -> None:
    """[S1]"""
    alone = finished(WALKS, share=False)
    assert alone.trace == walked.trace
    assert [one.text for one in alone.evidence] == [one.text for one in walked.evidence]


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_with_other_optimizers_audits_ban_nobody_who_is_honest(optimizer: str) -> None:
    simulation = finished(dataclasses.replace(SMALL, local_steps=3, optimizer=optimizer, steps=8, attack_start=2))
    assert simulation.agreement
    assert simulation.audits
    assert {ban.peer for ban in simulation.bans} <= {*simulation.byzantine}


class PrivateMoment(PooledWork):
    """A planted bug: its walks begin with the moments that its last one ended with."""

    _mine: State | None = None

    def walk(self, training: Training, seed: Seed, gradient: Compute, steps: int | None = None) -> Tensor:
        begun = training if self._mine is None else Training(training.parameters_D, self._mine)

        def remembered(parameters_D: Tensor, seed: Seed) -> Tensor:
            gradient_D = gradient(parameters_D, seed)
            _, state = self._optimizer.update(parameters_D, gradient_D, begun.optimizer, 0.1)
            self._mine = {**state, RATE: training.optimizer[RATE]}
            return gradient_D

        return super().walk(begun, seed, remembered, steps)


def test_a_walk_from_moments_of_its_own_is_found_by_an_audit() -> None:
    """[R2, D1] A past that is not in the state cannot be recomputed."""
    simulation = ProtocolSimulation(dataclasses.replace(WALKS, byzantine=0, steps=12))
    planted = simulation.honest[0]
    peer = simulation.peers[planted]
    assert isinstance(peer.work, PooledWork)
    work = copy(peer.work)
    work.__class__ = PrivateMoment
    simulation.peers[planted] = dataclasses.replace(peer, work=work)
    for _ in simulation.steps():
        pass
    assert [ban.peer for ban in simulation.bans] == [simulation.numbers[planted]]


def test_gradients_that_are_not_finite_are_counted_and_the_run_ends() -> None:
    """[R2]"""
    scenario = dataclasses.replace(WALKS, byzantine=0, rate=1e30, schedule="constant")
    simulation = finished(scenario)
    assert simulation.diverged_at is not None
    assert not simulation.bans


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outer": 0.5}, "`outer` needs `local_steps` above 1: for a single one, change `rate`"),
        ({"local_steps": 4, "outer": 0.0}, "`outer` must be a positive number"),
        ({"local_steps": 0}, "`local_steps` must be at least 1"),
        ({"local_steps": 4, "defence": "krum"}, "`local_steps` is the protocol's"),
        ({"local_steps": 1001}, "`local_steps` must be 1 to 1,000"),
        ({"local_steps": 4, "deviation": 1e-3}, "use `local_steps` 1, or machines of one class"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OperatorError, match=re.escape(words)):
        ProtocolSimulation(Scenario(task="quadratic:dimension=60", **options))


def test_summaries_without_local_steps_are_as_they_were() -> None:
    assert not {"local_steps", "outer"} & SMALL.as_dict().keys()
    assert {"local_steps": 4, "outer": 1.0}.items() <= WALKS.as_dict().items()


@pytest.mark.parametrize(
    "attack",
    ["sandbagger:share=1", "sandbagger:steps=4", "sandbagger:steps=3,share=1", "delayed-gradient:delay=1", "mimic"],
)
def test_saving_work_is_a_lie_like_any_other(attack: str) -> None:
    """[R2, D1] Fewer steps, smaller batches, yesterday's contribution or another's: each is another vector than the seed's."""
    scenario = dataclasses.replace(WALKS, attack=attack, attack_every=1, steps=16)
    simulation = finished(scenario)
    assert {ban.peer for ban in simulation.bans} == {*simulation.byzantine}
    assert all("does not follow from its seed" in ban.reason for ban in simulation.bans)


def test_a_sandbagger_that_saves_nothing_is_honest() -> None:
    simulation = finished(dataclasses.replace(WALKS, attack="sandbagger:steps=4,share=1", attack_every=1, steps=8))
    assert not simulation.bans


@pytest.mark.long
def test_strangers_walk_too_and_those_who_do_not_stay_outside() -> None:
    """[J5, S1] A candidate's work is that of a contributor; one that turns poisons all batches of its walk."""
    strangers = "honest + noise + copies + turns:attack=sandbagger"
    scenario = dataclasses.replace(
        SMALL, peers=5, byzantine=0, local_steps=3, probation=4, strangers=strangers, steps=20, validators=1
    )
    together, alone = finished(scenario), finished(scenario, share=False)
    assert alone.trace == together.trace
    admitted = {together.numbers[PeerId(one.key)] for raw in together.trace for one in decode_record(raw).admitted}
    assert admitted == {5, 8}, "the honest one, and the one that turns then"
    assert {ban.peer for ban in together.bans} == {6, 7, 8}
