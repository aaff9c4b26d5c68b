"""Small runs of the real protocol, shared by the tests of its clauses."""

import dataclasses
from collections.abc import Callable

import torch

from tests.protocol.replay import replay
from troth.crypto import PeerId, derive
from troth.evidence.verify import verify_ban
from troth.protocol.core.channel import Channel
from troth.protocol.core.records import StepRecord, decode_record
from troth.protocol.core.state import AuditRecord
from troth.protocol.wire.messages import ChargeKind
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training, TrainingWork
from troth.workshop.simulation import ProtocolSimulation, Scenario

# With this seed the two liars are banned more than two steps apart, so that the second ban has a history.
SMALL = Scenario(
    task="quadratic:dimension=60", peers=7, byzantine=2, attack_start=3, steps=30, evaluate_every=30, seed=2
)
# One of the liars is found in step 4, while the other validates; that one is found in step 14, by a validator too.
APART = dataclasses.replace(SMALL, attack_every=5, seed=5)
# With this seed an honest validator audits a liar in step 4, the step after the only one in which it lied; and if that one is
# lost, others who are honest.
LIE_ONCE = dataclasses.replace(SMALL, peers=16, attack_stop=4, steps=10, evaluate_every=10, seed=3)
BEFORE_REPORT, BEFORE_ACCUSE = 5, 6  # calls of the channel: commit, scatter, clip, gather, reveal, report, accuse


def finished(
    scenario: Scenario, *, share: bool = True, until: Callable[[ProtocolSimulation], bool] = lambda _: False
) -> ProtocolSimulation:
    """Run a scenario, to the end or until there is nothing more to see."""
    return run_on(ProtocolSimulation(scenario, share=share), until)


def run_on(
    simulation: ProtocolSimulation, until: Callable[[ProtocolSimulation], bool] = lambda _: False
) -> ProtocolSimulation:
    """Run to the end, or until there is nothing more to see; evidence waits for the step after, which certifies it [U2]."""
    done = False
    for _ in simulation.steps():
        done = done or until(simulation)
        if done and len(simulation.evidence) == len(simulation.bans):
            break
    return simulation


def liars_gone(simulation: ProtocolSimulation) -> bool:
    members = simulation.states[simulation.honest[0]].roster.members
    return not any(simulation.numbers[peer] in simulation.byzantine for peer in members)


def wrap_channel(simulation: ProtocolSimulation, peer: PeerId, wrap: Callable[[Channel], Channel]) -> None:
    """Put a wrapper around this peer's channel."""
    member = simulation.peers[peer]
    simulation.peers[peer] = dataclasses.replace(member, channel=wrap(member.channel))


def records(simulation: ProtocolSimulation) -> list[StepRecord]:
    """Records of the steps that train; the one that closes the run comes after them."""
    return [record for record in all_records(simulation) if not record.closing]


def all_records(simulation: ProtocolSimulation) -> list[StepRecord]:
    return [decode_record(raw) for raw in simulation.trace]


def kept_promises(simulation: ProtocolSimulation) -> dict[int, ChargeKind]:
    """Check what holds whatever liars do: agreement, no honest ban, proof of every ban. Return the kind of each ban."""
    assert simulation.agreement
    assert simulation.trace
    assert {ban.peer for ban in simulation.bans} <= set(simulation.byzantine)
    banned: dict[int, ChargeKind] = {}
    for ban, evidence in zip(simulation.bans, simulation.evidence, strict=True):
        proof = verify_ban(evidence.text)
        assert (simulation.numbers[proof.banned], proof.step) == (ban.peer, ban.step)
        assert 2 * proof.votes > proof.members
        banned[ban.peer] = proof.judgement.kind
    return banned


def equals_trusted_server(simulation: ProtocolSimulation) -> bool:
    """Whether a trusted server with the same contributors, seeds and bounds, and no lies, ends with the same bits."""
    scenario = simulation.scenario
    work = TrainingWork(simulation.problem, scenario.make_optimizer(), scenario.rates(), Primitives())
    served = replay(simulation.run, work, work.first(derive(scenario.seed, "model")), all_records(simulation))
    return torch.equal(served.parameters_D, simulation.states[last_standing(simulation)].training.parameters_D)


def last_standing(simulation: ProtocolSimulation) -> PeerId:
    """An honest peer that is still there."""
    return next(peer for peer in simulation.honest if peer not in simulation.gone)


def last_audit_record(simulation: ProtocolSimulation, peer: PeerId | None = None) -> AuditRecord[Training]:
    """The audit record of the last step at this peer, by default the first honest one."""
    state = simulation.states[peer or simulation.honest[0]]
    return state.audit_records[max(state.audit_records)]  # closing keeps nothing of its own
