"""Audits that are owed when all members lose power: files for them last as long as the debt, and no longer (SPEC R7, K1, B6).

A liar lies in step 3, and its auditors vanish one after another: the audit stays pending until step 7.
"""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import msgspec
import pytest

from tests.network.disk.slots import slot
from tests.protocol.samples import dealt_audits
from tests.protocol.small_runs import BEFORE_REPORT, LIE_ONCE, kept_promises, last_standing, run_on, wrap_channel
from troth.crypto import PeerId, derive
from troth.evidence.verify import verify_ban
from troth.network.disk.checkpoints import LatestState, Marks
from troth.network.node.folder import PeerFolder
from troth.protocol.core.records import MOST_OWED, Owed, decode_record, encode_record
from troth.protocol.core.roles import AuditDuty, PendingAudits, draw_roles
from troth.protocol.core.state import State
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import ChargeKind
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training, TrainingWork
from troth.workshop.simulation import ProtocolSimulation
from troth.workshop.simulation.exchange import DropOut, DroppingChannel

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
        lost += [auditor for auditor, audit in dealt_audits(roles) if audit == AuditDuty(target, LIE)]
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


def _read(path: Path, simulation: ProtocolSimulation) -> LatestState:
    folder = _folder(path, simulation)
    found = folder.last(_first(simulation))
    folder.close()
    return found


def _needed(state: State[Training]) -> frozenset[int]:
    """Steps of which this state needs the audit records."""
    return state.pending_audits.owed_steps | {state.step - 2, state.step - 1}


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


@pytest.mark.long
@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("losses", [2, 3])
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
    assert found.state.audit_records.keys() == _needed(states[-1])
    simulation.states |= dict.fromkeys(states[-1].roster.members, found.state.restarted(1))
    run_on(simulation, lambda simulation: bool(simulation.bans))
    assert kept_promises(simulation) == {simulation.numbers[target]: ChargeKind.GRADIENT}
    assert [ban.step for ban in simulation.bans] == [states[-1].step]
    assert not any(decode_record(raw).unaudited for raw in simulation.trace)


@pytest.mark.long
@pytest.mark.usefixtures("kind")
def test_a_member_that_goes_back_by_a_step_has_what_was_owed_there(tmp_path: Path) -> None:
    """[B2, B6] The last record was not certified, and it may have been the one that convicted the liar: the audit of four steps
    ago is owed once more."""
    lost, _ = _lost(3)
    simulation, states = _cut(lost, LIE + 5)
    before, last = states[-2:]
    assert LIE in _needed(before) - _needed(last)
    _save(tmp_path, simulation, states)
    found = _read(tmp_path, simulation)
    assert found.state.audit_records.keys() == _needed(last)
    assert found.past[-1].audit_records.keys() == _needed(before)


@pytest.mark.long
def test_an_owed_audit_is_not_done_by_the_record_of_a_discarded_step(tmp_path: Path) -> None:
    """[K1, B6] The step was made again without this peer: by its own record it would accuse an honest member, and be banned."""
    lost, target = _lost(3)
    simulation, states = _cut(lost, LIE + 4)
    _save(tmp_path, simulation, states)
    assert LIE in _read(tmp_path, simulation).state.audit_records
    folder = _folder(tmp_path, simulation)
    for state in states[LIE:]:
        record = decode_record(_certified(state).record)
        at = record.contributors.index(target) if record.step == LIE else -1
        roots = tuple(bytes(32) if number == at else root for number, root in enumerate(record.roots))
        folder.recorded([CertifiedRecord(encode_record(msgspec.structs.replace(record, roots=roots)), {})])
    folder.close()
    again = _read(tmp_path, simulation)
    assert again.state.step == states[-1].step
    assert LIE not in again.state.audit_records


def _owing(state: State[Training], steps: range) -> State[Training]:
    """The same state, with an audit owed of each of these steps."""
    target, due = state.roster.members[0], state.pending_audits
    owed = tuple(Owed(target, step, 1) for step in steps if step >= 0)
    return replace(state, pending_audits=replace(due, owed=owed))


def _steps(path: Path, suffix: str) -> list[int]:
    return sorted(int(file.stem.removeprefix("step-")) for file in (path / "checkpoints").glob(f"step-*.{suffix}"))


@cache
def _long() -> tuple[ProtocolSimulation, tuple[State[Training], ...]]:
    simulation = ProtocolSimulation(replace(LIE_ONCE, byzantine=0, peers=6, steps=24, evaluate_every=24))
    witness = last_standing(simulation)
    return simulation, tuple(simulation.states[witness] for _ in simulation.steps())[:-1]


@pytest.mark.long
@pytest.mark.parametrize("always", [True, False], ids=["always", "never"])
def test_liars_cannot_fill_the_disk_by_keeping_audits_owed(tmp_path: Path, kind: str, always: bool) -> None:
    """[R7, B2] In every step all audits that can be owed are, and some of long ago, which no honest member would name. Nothing is
    kept that is not needed for them, or to go back by a step and audit the one before."""
    simulation, states = _long()
    folder = _folder(tmp_path, simulation)
    folder.open_slots(Marks()).claim(slot(0))
    for state in states:
        owing = _owing(state, range(state.step - 1)) if always else state
        folder.save_step(owing, whole=False)
        folder.recorded([_certified(state)])
        last = state.step - 1
        oldest = max(0, last - 1 - MOST_OWED) if always else max(0, last - 2)
        assert _steps(tmp_path, "audit") == list(range(oldest, last + 1))
        models, aggregates = _steps(tmp_path, "safetensors"), _steps(tmp_path, "aggregate")
        assert len(models) <= (3 + MOST_OWED if always else 3)
        assert len(_steps(tmp_path, "json")) <= 3 + len(models)
        needed = max(0, last - 1 - (MOST_OWED if always else 0))
        base = max((step for step in models if step <= needed), default=0)
        assert aggregates == ([] if kind == "small" else list(range(base, state.step)))
        assert len(aggregates) <= {"small": 0, "large, saved seldom": 16}.get(kind, 1) + (4 if always else 1)
    folder.close()


def test_no_more_is_owed_than_an_honest_member_can_name() -> None:
    """[R7] An audit that came to nothing is dealt again in each of the next steps, three times at most."""
    owed = tuple(Owed(bytes(32), step, 1) for step in range(12))
    assert PendingAudits(9, (), owed).owed_steps == {6, 7, 8}
