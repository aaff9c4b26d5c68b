"""Audits that are still owed when all members lose power: done after it, from files that last as long as the debt (SPEC R7, K1, B6).

A liar lies in step 3, and its auditors vanish one after another: the audit stays pending until step 7.
"""

from functools import cache, partial
from pathlib import Path

import pytest

from tests.network.disk.slots import slot
from tests.protocol.samples import dealt_audits
from tests.protocol.small_runs import BEFORE_REPORT, LIE_ONCE, kept_promises, run_on, wrap_channel
from troth.crypto import PeerId, derive
from troth.evidence.verify import verify_ban
from troth.network.disk.checkpoints import Found, Marks
from troth.network.node.folder import PeerFolder
from troth.protocol.core.records import Owed, decode_record, encode_record
from troth.protocol.core.roles import Audit, draw_roles
from troth.protocol.core.state import State
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Kind
from troth.protocol.wire.primitives import Primitives
from troth.simulation import ProtocolSimulation
from troth.simulation.lockstep.drop_outs import DropOut, DroppingChannel
from troth.training.work import Training, TrainingWork

LIE = 3  # the step of the lie
States = list[State[Training]]


def _cut(lost: tuple[PeerId, ...], steps: int) -> tuple[ProtocolSimulation, States]:
    """A run whose n-th lost peer falls silent in the n-th step after the lie, for so many steps; and all states of a member."""
    simulation = ProtocolSimulation(LIE_ONCE)
    for number, peer in enumerate(lost):
        drop_out = DropOut(LIE + 1 + number, BEFORE_REPORT)
        wrap_channel(simulation, peer, partial(DroppingChannel, drop_out=drop_out))
    states: States = []
    witness = next(peer for peer in simulation.honest if peer not in lost)
    for _ in simulation.steps():
        states.append(simulation.states[witness])
        if len(states) == steps:
            break
    return simulation, states


@cache
def _lost(losses: int) -> tuple[tuple[PeerId, ...], PeerId]:
    """The auditors that the lie's audit is dealt to, one after another, and the liar."""
    undisturbed = run_on(ProtocolSimulation(LIE_ONCE), lambda simulation: bool(simulation.bans))
    judgement = verify_ban(undisturbed.evidence[0].text).judgement
    assert (judgement.step, judgement.accuser is None) == (LIE, False)
    lost, target = [PeerId(judgement.accuser or b"")], PeerId(judgement.target)
    while len(lost) < losses:
        simulation, states = _cut(tuple(lost), LIE + 1 + len(lost))
        last = states[-1]
        roles = draw_roles(simulation.run, last.roster, last.randomness, last.pending_audits)
        lost += [auditor for auditor, audit in dealt_audits(roles) if audit == Audit(target, LIE)]
    return tuple(lost), target


def _folder(path: Path, simulation: ProtocolSimulation) -> PeerFolder:
    scenario = simulation.scenario
    work = TrainingWork(simulation.problem, scenario.make_optimizer(), scenario.rates(), Primitives())
    return PeerFolder(path, simulation.run.id, work, keep_checkpoints=3, note=lambda _: None)


def _first(simulation: ProtocolSimulation) -> State[Training]:
    scenario = simulation.scenario
    work = TrainingWork(simulation.problem, scenario.make_optimizer(), scenario.rates(), Primitives())
    training = work.first(derive(scenario.seed, "model"))
    return State.first(simulation.run, training, work.digest(training))


def _certified(state: State[Training]) -> CertifiedRecord:
    assert state.last is not None
    return CertifiedRecord(encode_record(state.last.record), {})  # a folder does not ask who signed


def _save(path: Path, simulation: ProtocolSimulation, states: States) -> None:
    """Write down states as a member does: a record is certified by the step after it."""
    folder = _folder(path, simulation)
    folder.open_slots(Marks()).claim(slot(0))
    for number, state in enumerate(states):
        if number:
            folder.recorded([_certified(states[number - 1])])
        folder.save_step(state, whole=False)
    folder.recorded([_certified(states[-1])])
    folder.close()


def _read(path: Path, simulation: ProtocolSimulation) -> Found:
    folder = _folder(path, simulation)
    found = folder.last(_first(simulation))
    folder.close()
    return found


KINDS = {
    "small": (1 << 24, 50),
    "large, saved with every step": (0, -1),
    "large, saved seldom": (0, 1 << 40),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How models lie on disk."""
    small, seldom = KINDS[request.param]
    monkeypatch.setattr("troth.network.disk.checkpoints._SMALL", small)
    monkeypatch.setattr("troth.network.disk.checkpoints._SELDOM", seldom)
    return str(request.param)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("losses", [1, *(pytest.param(n, marks=pytest.mark.xfail(strict=True)) for n in (2, 3))])
def test_after_a_power_cut_for_all_an_owed_audit_still_convicts(tmp_path: Path, losses: int) -> None:
    """[R7, K1, B6] Else the auditor would have nothing to audit by, its silence would count as an acquittal, and the liar would
    be free: a power cut would be a way out."""
    lost, target = _lost(losses)
    simulation, states = _cut(lost, LIE + 1 + losses)
    assert states[-1].step == LIE + 1 + losses
    assert Owed(target, LIE, losses) in states[-1].pending_audits.owed
    _save(tmp_path, simulation, states)
    found = _read(tmp_path, simulation)
    assert found.lacks is None
    assert set(found.state.audit_records) == {LIE, states[-1].step - 2, states[-1].step - 1}
    simulation.states |= dict.fromkeys(states[-1].roster.members, found.state.restarted(1))
    run_on(simulation, lambda simulation: bool(simulation.bans))
    assert kept_promises(simulation) == {simulation.numbers[target]: Kind.GRADIENT}
    assert [ban.step for ban in simulation.bans] == [states[-1].step]
    assert not any(decode_record(raw).unaudited for raw in simulation.trace)
