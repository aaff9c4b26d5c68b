"""A run that goes on from a file ends as if it had never been stopped, byte for byte; or it begins anew."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.simulation.lockstep.interrupted import (
    SMALL,
    Course,
    forgotten,
    resumed,
    simulation_of,
    stopped_after,
    stopped_and_whole,
    to_the_end,
)
from troth.aggregation import Setting, UnwritableError
from troth.aggregation.baselines.centered_clip_momentum import _FromTheLast
from troth.aggregation.memory import RuleWithMemory
from troth.attacks import ATTACKS, Coalition, GradientAttack
from troth.attacks.gradient import Forge
from troth.attacks.gradient.past import DelayedGradient, _Delaying
from troth.protocol.core.state import State
from troth.simulation import Scenario, ServerSimulation, Started, start
from troth.simulation.lockstep.protocol_run import ProtocolSimulation
from troth.simulation.lockstep.snapshots import snapshot as snapshots
from troth.simulation.lockstep.snapshots.file import read_snapshot, write_snapshot
from troth.simulation.lockstep.snapshots.snapshot import SnapshotError, TooLargeError
from troth.training.tasks.quadratic import Quadratic

PROTOCOL: dict[str, dict[str, Any]] = {
    "sign-flip": {},
    "delayed-gradient": {"attack": "delayed-gradient:delay=3"},
    "mimic and noise": {"attack": "mimic:warmup=6 + gaussian"},
    "unwatched": {"attack": "unwatched:attack=delayed-gradient,chance=0.5"},
    "drop-outs": {"attack": "alie", "peers": 10, "byzantine": 2, "drop_outs": 3, "seed": 0},
    "two classes of hardware": {"machines": "cpu:peers=3,float64=true", "deviation": 0.01},
    "lying jury": {"attack": "lying-jury"},
    "wrong report": {"attack": "wrong-report", "tau_auto": 0.3},
    "vanish": {"attack": "vanish:after=report"},
}
SERVER: dict[str, dict[str, Any]] = {
    "mean": {"attack": "delayed-gradient:delay=3"},
    "krum": {"attack": "gaussian"},
    "centered-clip-momentum": {"attack": "ipm-0.6", "momentum": 0.9, "momentum_average": True},
    "safeguard": {"attack": "sign-flip", "defence": "safeguard:short=2,long=4"},
    "bucketing of safeguard": {"attack": "mimic:warmup=6", "defence": "bucketing:rule=safeguard"},
    "nnm": {"attack": "rop:z=1"},
}


OWED = 3  # steps after which an audit is owed, among drop-outs
NOISE = dataclasses.replace(SMALL, attack="gaussian", defence="mean")
DIVERGING = dataclasses.replace(SMALL, attack="not-finite", defence="mean", rate=1e30, optimizer="sgd", steps=60)
DIVERGING_PROTOCOL = dataclasses.replace(DIVERGING, defence="troth", tau=1e30)


def protocol(name: str) -> Scenario:
    return dataclasses.replace(SMALL, **PROTOCOL[name])


def server(name: str) -> Scenario:
    return dataclasses.replace(SMALL, **({"defence": name} | SERVER[name]))


@pytest.mark.parametrize("name", PROTOCOL)
def test_the_protocol_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    """From the start, before the attack, right after a ban and before its evidence, with audits owed, and after the last step."""
    scenario = protocol(name)
    files, whole = stopped_and_whole(scenario, tmp_path)
    bans = whole.finished.summary.details["banned"]
    moments = {0, 2, OWED, len(files) - 2, len(files) - 1, *(min(ban["step"] + 1, len(files) - 1) for ban in bans)}
    for moment in sorted(moments):
        assert resumed(scenario, files[moment]) == whole, f"stopped after step {moment}"


@pytest.mark.parametrize("name", SERVER)
def test_a_trusted_server_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    scenario = server(name)
    files, whole = stopped_and_whole(scenario, tmp_path)
    for file in files:
        assert resumed(scenario, file) == whole, f"stopped after step {file.stem}"


def test_an_audit_is_owed_where_a_run_with_drop_outs_is_stopped() -> None:
    """After step 3, which the test above stops at, and three peers are gone in the end."""
    run = stopped_after(protocol("drop-outs"), OWED)
    simulation = simulation_of(run)
    assert isinstance(simulation, ProtocolSimulation)
    assert any(state.pending_audits.owed for state in simulation.states.values())
    list(run)
    assert len(simulation.gone) == 3


@pytest.mark.parametrize("scenario", [DIVERGING, DIVERGING_PROTOCOL])
def test_a_run_that_ended_early_stays_ended(scenario: Scenario) -> None:
    run = start(scenario)
    whole = to_the_end(run)
    assert simulation_of(run).diverged_at is not None
    assert to_the_end(start(scenario, run.snapshot())) == whole


@pytest.mark.parametrize("name", ["not_finite", "not_finite_since"])
def test_steps_without_a_finite_gradient_that_are_forgotten_show(name: str) -> None:
    whole = to_the_end(start(DIVERGING_PROTOCOL))
    run = stopped_after(DIVERGING_PROTOCOL, whole.finished.summary.details["diverged_at"] + 2)
    assert not ends_otherwise(run, whole)
    with forgotten("PROTOCOL", name):
        assert ends_otherwise(run, whole)


def test_stopped_again_and_again(tmp_path: Path) -> None:
    scenario, file = protocol("mimic and noise"), tmp_path / "run"
    whole, run = to_the_end(start(scenario)), start(scenario)
    while next(run, None) is not None:
        write_snapshot(file, run.snapshot())
        run = start(scenario, read_snapshot(file)[0])
    assert to_the_end(run) == whole


def test_a_snapshot_changes_nothing_and_is_not_changed() -> None:
    """Momentum is changed in place: a snapshot has its own."""
    scenario = server("centered-clip-momentum")
    run = stopped_after(scenario, 5)
    taken = run.snapshot()
    whole = to_the_end(run)
    for _ in range(2):
        assert to_the_end(start(scenario, taken)) == whole


# Nothing is forgotten


@pytest.fixture(scope="module")
def half_way() -> Any:
    """A run of the protocol with one ban behind it, whose evidence is still to come, and another ban to come; and its end."""
    whole = to_the_end(start(protocol("delayed-gradient")))
    first, second = (ban["step"] for ban in whole.finished.summary.details["banned"])
    assert first < second
    return stopped_after(protocol("delayed-gradient"), first + 1), whole


@pytest.fixture(scope="module")
def before_a_ban() -> Any:
    """The same run just before its first ban, which an audit of the last step leads to."""
    whole = to_the_end(start(protocol("delayed-gradient")))
    first = whole.finished.summary.details["banned"][0]["step"]
    return stopped_after(protocol("delayed-gradient"), first), whole


def ends_otherwise(run: Started, whole: Course) -> bool:
    """Whether a run that goes on from there does not end as it should, or not at all."""
    try:
        return to_the_end(start(run.scenario, run.snapshot())) != whole
    except (SnapshotError, AssertionError, KeyError):
        return True


@pytest.mark.parametrize(
    ("table", "name"),
    [
        *(("PROTOCOL", name) for name in ("attacked_steps", "attempts", "audits", "bans", "steps_done", "trace")),
        *(("PROTOCOL", name) for name in ("trials",)),
        *(("POOL", name) for name in snapshots.POOL),
        *(("EXCHANGE", name) for name in snapshots.EXCHANGE),
        ("HISTORY", "uncertified"),
        ("HISTORY", "last"),
    ],
)
def test_an_attribute_that_is_forgotten_shows(half_way: Any, table: str, name: str) -> None:
    run, whole = half_way
    with forgotten(table, name):
        assert ends_otherwise(run, whole)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(State) if field.name != "incarnation"])
def test_a_field_of_the_state_that_is_forgotten_shows(
    before_a_ban: Any, half_way: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every peer goes on with what the run began with."""
    into = snapshots._into_protocol

    def forgetting(simulation: ProtocolSimulation, shared: Any) -> None:
        first = next(iter(simulation.states.values()))
        into(simulation, shared)
        states = simulation.states.items()
        simulation.states = {peer: dataclasses.replace(state, **{name: getattr(first, name)}) for peer, state in states}

    monkeypatch.setattr(snapshots, "_into_protocol", forgetting)
    assert ends_otherwise(*(half_way if name == "roster" else before_a_ban))  # nobody is gone before


def test_nothing_forgotten_shows_nothing(half_way: Any, before_a_ban: Any) -> None:
    assert not ends_otherwise(*half_way)
    assert not ends_otherwise(*before_a_ban)


@pytest.mark.parametrize("name", snapshots.SERVER)
def test_an_attribute_of_the_server_that_is_forgotten_shows(name: str) -> None:
    scenario = dataclasses.replace(server("centered-clip-momentum"), optimizer="adamw")
    scenario, steps = (DIVERGING, 60) if name == "diverged_at" else (scenario, 5)
    whole, run = to_the_end(start(scenario)), stopped_after(scenario, steps)
    assert not ends_otherwise(run, whole)
    with forgotten("SERVER", name):
        assert ends_otherwise(run, whole)


@pytest.mark.parametrize("scenario", [protocol("delayed-gradient"), server("mean"), NOISE])
def test_an_attack_that_forgets_shows(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, taken = to_the_end(start(scenario)), stopped_after(scenario, 6).snapshot()
    assert to_the_end(start(scenario, taken)) == whole
    monkeypatch.setattr(Coalition, "recall", lambda *_: None)
    assert to_the_end(start(scenario, taken)) != whole


@pytest.mark.parametrize("name", ["centered-clip-momentum", "safeguard", "bucketing of safeguard"])
def test_a_rule_that_forgets_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = server(name)
    whole, taken = to_the_end(start(scenario)), stopped_after(scenario, 5).snapshot()
    monkeypatch.setattr(snapshots, "recall_into", lambda *_: None)
    assert to_the_end(start(scenario, taken)) != whole


FOLLOWS = {  # from the scenario, or only saves time
    *("scenario", "problem", "byzantine", "attacks", "coalition", "tools", "_ahead", "expected", "honest", "numbers"),
    *("run", "colluders", "liars", "ears", "peers", "_work", "pool", "door", "exchange", "proves", "history"),
    *("_shards", "aggregator", "assumed_byzantine", "origin"),
    *("_problem", "_tools", "_coalition", "_numbers", "_losses", "_honest", "_share", "_parts"),
}
WRITTEN_APART = {"states", "board"}


def test_every_attribute_is_written_or_follows_from_the_scenario() -> None:
    """Whoever adds one has to say which."""
    one, other = ProtocolSimulation(SMALL), ServerSimulation(server("mean"))
    tables = [
        (one, snapshots.PROTOCOL),
        (other, snapshots.SERVER),
        (one.pool, snapshots.POOL),
        (one.exchange, snapshots.EXCHANGE),
        (one.history, snapshots.HISTORY),
    ]
    for thing, table in tables:
        assert vars(thing).keys() - set(table) <= FOLLOWS | WRITTEN_APART, type(thing).__name__
        assert set(table) <= vars(thing).keys()


def test_nobody_gets_anothers_state() -> None:
    """A peer whose state is off by one bit has that bit afterwards, and nobody else."""
    run = stopped_after(SMALL, 3)
    simulation = simulation_of(run)
    assert isinstance(simulation, ProtocolSimulation)
    odd = simulation.honest[1]
    state = simulation.states[odd]
    parameters_D = state.training.parameters_D.clone()
    parameters_D[7] += 1e-6
    other = dataclasses.replace(state, training=dataclasses.replace(state.training, parameters_D=parameters_D))
    simulation.states[odd] = other
    again = simulation_of(start(SMALL, run.snapshot()))
    assert isinstance(again, ProtocolSimulation)
    for peer, before in simulation.states.items():
        assert again.states[peer].training.parameters_D.equal(before.training.parameters_D)
        assert again.states[peer].roster == before.roster
        assert again.states[peer].scales == before.scales
        assert again.states[peer].pending_audits == before.pending_audits
        assert again.states[peer].audit_records.keys() == before.audit_records.keys()
    assert len({id(state.training) for state in again.states.values()}) == 2  # the others hold the same bits: read once


# What has a memory that nobody writes


class Closure(GradientAttack):
    def begin(self, seed: Any) -> Forge:
        seen: list[Tensor] = []

        def forge(_members: Sequence[int], own_BD: Tensor, _honest_HD: Tensor) -> Tensor:
            seen.append(own_BD)
            return seen[0]

        return forge


class Counting(GradientAttack):
    count = 0

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        self.count += 1
        return own_BD * self.count


@dataclasses.dataclass(frozen=True)
class Collecting(GradientAttack):
    seen: list[int] = dataclasses.field(default_factory=list)

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        self.seen.append(1)
        return own_BD * len(self.seen)


class Further(DelayedGradient):
    """Its forging function has a base that says what it remembers, and remembers more."""

    def begin(self, seed: Any) -> Forge:
        return _Further(2)


class _Further(_Delaying):
    times = 0

    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        self.times += 1
        return super().__call__(members, own_BD, honest_HD) * self.times


class Plain(GradientAttack):
    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return -2 * own_BD


class Silent(RuleWithMemory):
    def begin(self, setting: Setting) -> Any:
        return lambda vectors_PD, _senders: vectors_PD.mean(dim=0)


class Inheriting(RuleWithMemory):
    def begin(self, setting: Setting) -> Any:
        return type("Mine", (_FromTheLast,), {})(1, setting.tau)


class Average:
    def __init__(self) -> None:
        self.last = torch.zeros(())

    def __call__(self, vectors_PD: Tensor) -> Tensor:
        self.last = vectors_PD.mean(dim=0)
        return self.last


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"attack": Closure()}, "Closure: .* does not say what it remembers"),
        ({"attack": Counting()}, "keeps something in its own attributes"),
        ({"attack": Collecting()}, "keeps something in its own attributes"),
        ({"attack": Further()}, "_Further does not say what it remembers"),
        ({"attack": Closure(), "defence": "mean"}, "does not say what it remembers"),
        ({"attack": "wrong-aggregate"}, "behaviour in the protocol has a memory"),
        ({"attack": "false-accusation + sign-flip"}, "behaviour in the protocol has a memory"),
        ({"probation": 4, "strangers": "honest"}, "`probation`"),
        ({"defence": Silent()}, "does not say what it remembers"),
        ({"defence": Inheriting()}, "does not say what it remembers"),
        ({"defence": Average()}, "keeps something in its own attributes"),
    ],
)
def test_what_cannot_be_written_is_not_written(changes: dict[str, Any], says: str) -> None:
    run = stopped_after(dataclasses.replace(SMALL, **changes), 5)
    with pytest.raises(UnwritableError, match=says):
        run.snapshot()


def test_a_users_own_attack_without_a_memory_is_written(tmp_path: Path) -> None:
    scenario = dataclasses.replace(SMALL, attack=Plain())
    files, whole = stopped_and_whole(scenario, tmp_path)
    assert resumed(scenario, files[6]) == whole


def test_every_attack_on_gradients_can_be_written() -> None:
    """Those of the paper, and all that do nothing else in the protocol than any colluder."""
    unwritable = set()
    for name, kind in ATTACKS.items():
        if vars(kind.behaviour).get("forgetful") is not True or name in ("label-flip", "backdoor"):
            continue
        scenario = dataclasses.replace(SMALL, attack="rop:z=1" if name == "rop" else name, steps=4)
        if kind.needs_protocol:
            continue
        try:
            stopped_after(dataclasses.replace(scenario, defence="mean"), 2).snapshot()
        except UnwritableError:
            unwritable.add(name)
    assert not unwritable


# Files


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "run.safetensors"
    write_snapshot(path, stopped_after(server("safeguard"), 5).snapshot(), "a note")
    return path


def test_a_file_holds_the_same_and_a_note(kept: Path) -> None:
    snapshot, note = read_snapshot(kept)
    assert (snapshot.step, note) == (5, "a note")
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


def test_a_damaged_file_is_refused(kept: Path, tmp_path: Path) -> None:
    """Cut anywhere, or with one bit turned round anywhere."""
    raw, path = kept.read_bytes(), tmp_path / "damaged"
    places = range(0, len(raw), max(1, len(raw) // 150))
    for place in places:
        path.write_bytes(raw[:place])
        with pytest.raises(SnapshotError):
            read_snapshot(path)
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 4]) + raw[place + 1 :])
        with pytest.raises((SnapshotError, ValueError)):
            read_snapshot(path)


@pytest.mark.parametrize("name", ["FORMAT", "__version__"])
def test_a_file_of_another_version_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(f"troth.simulation.lockstep.snapshots.file.{name}", "another")
        write_snapshot(tmp_path / "other", stopped_after(server("mean"), 2).snapshot())
    with pytest.raises(SnapshotError, match="another"):
        read_snapshot(tmp_path / "other")


@pytest.mark.parametrize("change", [{"seed": 3}, {"steps": 15}, {"attack": "alie"}, {"defence": "median"}])
def test_another_scenarios_snapshot_is_refused(kept: Path, change: dict[str, Any]) -> None:
    with pytest.raises(SnapshotError, match="another run"):
        start(dataclasses.replace(server("safeguard"), **change), read_snapshot(kept)[0])


def test_on_another_machine_it_is_refused(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of the rest of the run might be others."""
    monkeypatch.setattr("platform.machine", lambda: "another")
    with pytest.raises(SnapshotError, match=r"it was made with .*, and here is .* another "):
        start(server("safeguard"), read_snapshot(kept)[0])


def test_of_a_run_with_evidence_it_is_not_for_one_without() -> None:
    """Its evidence would be incomplete."""
    taken = start(SMALL, evidence=False).snapshot()
    with pytest.raises(SnapshotError, match="no evidence"):
        start(SMALL, taken)
    assert start(SMALL, taken, evidence=False).step == 0


def test_a_run_without_evidence_has_the_same_summary() -> None:
    one, other = start(SMALL).finish(), start(SMALL, evidence=False).finish()
    assert one.summary == other.summary
    assert one.evidence
    assert not other.evidence


def test_more_than_allowed_is_not_copied() -> None:
    run = stopped_after(protocol("delayed-gradient"), 4)
    size = run.snapshot().whole.nbytes
    with pytest.raises(TooLargeError, match="GiB"):
        run.snapshot(size - 1)
    assert run.snapshot(size).whole.nbytes == size


def test_metrics_of_numpys_kind_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = Quadratic.evaluate
    monkeypatch.setattr(
        Quadratic, "evaluate", lambda *told: {name: np.float64(value) for name, value in plain(*told).items()}
    )
    run = stopped_after(protocol("mimic and noise"), 3)
    write_snapshot(tmp_path / "run", run.snapshot())
    assert all(type(value) in (int, float) for point in run.curve for value in point.values())
