"""A manifest gives a peer names, a problem, the same bits and the same beginning as a simulation."""

import dataclasses

import pytest
import torch

from tests.network.manifest.plans import FOUNDERS, KEYS, PLAN, SPEC
from troth.crypto import derive
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.options import ManifestOptions
from troth.network.manifest.toml import ManifestError
from troth.protocol.wire.primitives import Primitives
from troth.training import make_task
from troth.workshop.simulation import Scenario
from troth.workshop.simulation.protocol_run import ProtocolSimulation


@pytest.mark.long
def test_the_same_bits_and_the_same_beginning_as_a_simulation() -> None:
    manifest = build_manifest("digits-cnn", FOUNDERS, ManifestOptions(seed=7)).manifest
    simulated = ProtocolSimulation(Scenario(task="digits-cnn", peers=4, seed=7))
    problem = manifest.problem(manifest.make_task())
    work = manifest.work(problem, Primitives())
    state = manifest.first_state(work)
    first = simulated.states[simulated.honest[0]].training
    assert torch.equal(state.training.parameters_D, first.parameters_D)
    assert state.step == 0
    assert state.roster.members == tuple(sorted(KEYS[:4]))
    seeds = [derive(0, "any", k) for k in range(4)]
    together_PD = simulated.problem.gradients(first.parameters_D, [problem.batch(seed) for seed in seeds])[1]
    assert torch.equal(together_PD[2], work.gradient_now(state.training, seeds[2]))


def test_there_is_a_rate_for_each_step() -> None:
    assert len(PLAN.rates()) == PLAN.steps


def test_names() -> None:
    assert [PLAN.name_of(key) for key in KEYS] == ["alice", "bob", "carol", "dave", KEYS[4].hex()[:16]]
    assert [PLAN.founder(key) for key in KEYS] == [*FOUNDERS, None]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_here() -> None:
    with pytest.raises(ManifestError, match="PyTorch sees no CUDA device"):
        dataclasses.replace(PLAN, device="cuda").problem(make_task(SPEC))
