"""Real processes over loopback: the same records as the simulator, liars out, and nobody lost to `kill -9`."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from troth.api.verify import Result, expand, verify_paths
from troth.cli import app
from troth.errors import OperatorError
from troth.events.file import EVENTS, STATUS, decode_event, decode_status
from troth.events.kinds import Began, Ended, Event, Stepped
from troth.evidence.verify import verify_ban
from troth.network.disk.journal import read_journal
from troth.protocol.core.records import StepRecord, decode_record
from troth.protocol.history import Recorded, Said
from troth.protocol.wire.messages import NO_BASIS
from troth.workshop.simulation import Scenario
from troth.workshop.simulation.protocol_run import ProtocolSimulation
from troth.workshop.swarm import Seen, Swarm
from troth.workshop.swarm_peers import SwarmError, SwarmPlan, folder_of, rehearsal

PATIENCE_S = 300.0


def run_swarm(plan: SwarmPlan, out: Path, steps: int) -> Swarm:
    with Swarm(plan, rehearsal(plan, steps=steps, delta_s=1.0), out) as swarm:
        assert swarm.follow(most_s=PATIENCE_S), f"only {swarm.seen.events.keys()}; {swarm.seen.notes}"
    assert {swarm.seen.ended[number].how for number in swarm.honest} == {"done"}
    return swarm


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Swarm:
    plan = SwarmPlan(peers=5, byzantine=1, attacks=("sign-flip",), attack_start=3, seed=3)
    return run_swarm(plan, tmp_path_factory.mktemp("swarm"), steps=20)


@pytest.mark.parametrize(
    ("losses", "diverged_at"),
    [
        ([1.0, None, None, None], 1),
        ([1.0, None, None], None),
        ([None, None, None, 1.0], None),
        ([1.0, None, None, 1.0, None, None, None, None], 4),
    ],
)
def test_a_swarm_without_a_finite_loss_to_the_end_has_diverged(
    tmp_path: Path, losses: list[float | None], diverged_at: int | None
) -> None:
    plan = SwarmPlan(peers=4, byzantine=1)
    swarm = Swarm(plan, rehearsal(plan, steps=9), tmp_path)
    for number in range(4):
        honest = number in swarm.honest
        swarm.seen.events[number] = {
            step: Stepped(step=step, updates=step + 1, of=9, members=4, loss=loss if honest else 1.0)
            for step, loss in enumerate(losses)
        }
    assert swarm.summary({"loss": 1.0}).details["diverged_at"] == diverged_at


def _untimed(raw: bytes) -> StepRecord:
    """A record without the digests of messages that were judged, for Commits say how long things took; and without record keys,
    which are drawn anew by every process (SPEC U6)."""
    record = decode_record(raw)
    judgements = tuple(msgspec.structs.replace(judgement, message=NO_BASIS) for judgement in record.judgements)
    changed = record.changed if record.changed > 0 else -1
    return msgspec.structs.replace(record, judgements=judgements, rekeyed=(), changed=changed)


def test_processes_and_the_simulator_agree_on_the_same_records(rehearsed: Swarm) -> None:
    """The same seeds through both: record by record, to the last bit."""
    plan, manifest = rehearsed.plan, rehearsed.manifest
    scenario = Scenario(
        task="digits", peers=5, byzantine=1, attack="sign-flip", attack_start=3, steps=manifest.steps, seed=plan.seed
    )
    simulation = ProtocolSimulation(scenario, run=manifest.run)
    for _ in simulation.steps():
        pass
    seen = rehearsed.seen.records[rehearsed.witness]
    assert [_untimed(seen[step]) for step in sorted(seen)] == [_untimed(raw) for raw in simulation.trace]
    assert rehearsed.agreement


@pytest.mark.long
def test_processes_and_the_simulator_agree_on_walks_of_local_steps(tmp_path: Path) -> None:
    """[R2, D1] Gradients are begun ahead, audited and lied about in processes of their own."""
    plan = SwarmPlan(peers=5, byzantine=1, attack_start=3, seed=3)
    plain = rehearsal(plan, "quadratic:dimension=40", steps=12, delta_s=1.0)
    parameters = dataclasses.replace(plain.parameters, local_steps=4)
    manifest = dataclasses.replace(plain, parameters=parameters, outer=0.5)
    with Swarm(plan, manifest, tmp_path) as swarm:
        assert swarm.follow(most_s=PATIENCE_S), f"only {swarm.seen.events.keys()}; {swarm.seen.notes}"
    assert {swarm.seen.ended[number].how for number in swarm.honest} == {"done"}
    options = {"byzantine": 1, "attack_start": 3, "local_steps": 4, "outer": 0.5}
    scenario = Scenario(task="quadratic:dimension=40", peers=5, steps=12, seed=3, **options)  # type: ignore[arg-type]
    simulation = ProtocolSimulation(scenario, run=manifest.run)
    for _ in simulation.steps():
        pass
    seen = swarm.seen.records[swarm.witness]
    assert [_untimed(seen[step]) for step in sorted(seen)] == [_untimed(raw) for raw in simulation.trace]
    assert {ban.peer for ban in simulation.bans} == {*plan.liars}


def _agreed(event: Stepped) -> Stepped:
    """What is agreed on; without what one peer measured."""
    nothing = Stepped(step=0, updates=0, of=0, members=0)
    own = "loss metrics seconds at attacked own_audits phases control_bytes bulk_bytes sent_bytes delta_s least_delta_s"
    own += " received_per_parameter sent_per_parameter"
    return msgspec.structs.replace(event, **{name: getattr(nothing, name) for name in own.split()})


def _told(file: Path) -> list[Event]:
    return [decode_event(line) for line in file.read_bytes().splitlines()]


@pytest.mark.long
def test_member_swarm_and_simulation_tell_the_same(rehearsed: Swarm) -> None:
    """One stream: the same events, whoever tells them."""
    plan, manifest = rehearsed.plan, rehearsed.manifest
    scenario = Scenario(
        task="digits", peers=5, byzantine=1, attack="sign-flip", attack_start=3, steps=manifest.steps, seed=plan.seed
    )
    simulation = ProtocolSimulation(scenario, run=manifest.run)
    simulated = [_agreed(event) for report in simulation.steps() for event in report.events]
    assert len(simulated) == manifest.steps + 1
    assert [ban.peer for event in simulated for ban in event.banned] == [f"peer{plan.liars[0]}"]
    for number in rehearsed.honest:
        folder = folder_of(rehearsed.out, number)
        live = _told(folder / EVENTS)
        assert isinstance(live[0], Began)
        assert (live[0].withstands, live[0].quorum, live[0].validators, live[0].of) == (1, 3, 1, manifest.steps)
        assert [peer.name for peer in live[0].peers] == [f"peer{k}" for k in range(5)]
        assert [peer.key for peer in live[0].peers] == [identity.peer.hex() for identity in plan.identities()]
        assert isinstance(live[-1], Ended)
        assert live[-1].how == "over"
        assert [_agreed(event) for event in live if isinstance(event, Stepped)] == simulated
    of_swarm = _told(rehearsed.out / EVENTS)
    assert [_agreed(event) for event in of_swarm if isinstance(event, Stepped)] == simulated
    assert isinstance(of_swarm[0], Began)
    proofs = {ban.evidence for event in of_swarm if isinstance(event, Stepped) for ban in event.banned}
    assert all((Path(of_swarm[0].evidence) / proof).is_file() for proof in proofs)
    assert [peer.name for peer in of_swarm[0].peers if peer.liar] == [f"peer{number}" for number in plan.liars]


def test_a_member_measures_its_steps_and_its_links(rehearsed: Swarm) -> None:
    folder = folder_of(rehearsed.out, rehearsed.honest[0])
    steps = [event for event in _told(folder / EVENTS) if isinstance(event, Stepped)]
    for event in steps:
        assert event.seconds is not None
        assert event.loss is not None
        ends = [phase.ended for phase in event.phases]
        assert ends == sorted(ends)
        assert {"commit", "accuse"} <= {phase.phase for phase in event.phases}
        assert 0 <= event.phases[0].began <= ends[-1] <= event.seconds + 0.5
    assert steps[-1].metrics["accuracy"] > 0.1
    status = decode_status((folder / STATUS).read_bytes())
    assert (status.doing, status.updates, status.of) == ("over", rehearsed.manifest.steps, rehearsed.manifest.steps)
    assert len(status.links) == rehearsed.plan.peers - 1
    assert all(link.received_bytes > 0 and link.sent_bytes > 0 for link in status.links)
    assert status.sent_bytes == sum(link.sent_bytes for link in status.links), "counted once"
    assert status.sent_per_parameter is not None
    assert status.sent_per_parameter > 0
    assert status.memory_bytes > 10**7


def test_liars_are_out_with_evidence_that_verifies(rehearsed: Swarm) -> None:
    files = sorted(rehearsed.evidence_folder().glob("ban-*.json"))
    assert files
    liars = {rehearsed.plan.identities()[number].peer for number in rehearsed.plan.liars}
    for file in files:
        assert verify_ban(file.read_text()).banned in liars
    summary = rehearsed.summary({})
    assert summary.details["honest_banned"] == 0
    assert {ban["peer"] for ban in summary.details["banned"]} == set(rehearsed.plan.liars)


def test_every_peer_leaves_a_journal_a_model_and_signatures(rehearsed: Swarm) -> None:
    digests = set()
    for number in rehearsed.honest:
        folder = folder_of(rehearsed.out, number)
        (journal,) = (folder / "journal").glob("steps-*.jsonl")
        kinds = [type(line) for line in read_journal(journal)]
        assert kinds.count(Recorded) == rehearsed.manifest.steps + 1  # the last one closes the run
        assert kinds.count(Said) >= 5 * rehearsed.manifest.steps
        proof = json.loads((folder / "model.json").read_text())
        assert 2 * len(proof["signatures"]) > len(rehearsed.honest)
        assert (folder / "model.safetensors").stat().st_size > 1000
        digests.add(proof["state_digest"])
    assert len(digests) == 1


def test_a_stranger_with_the_manifest_checks_every_ban_and_model(rehearsed: Swarm) -> None:
    """[E1, U4] Files of all peers; the roster had changed before the end."""
    verdicts = list(verify_paths(expand([rehearsed.out]), rehearsed.manifest))
    assert [verdict.line() for verdict in verdicts if verdict.result is not Result.PROVED] == []
    kinds = [verdict.details["kind"] for verdict in verdicts]
    assert kinds.count("model") == len(rehearsed.honest)
    assert kinds.count("ban") >= 1


@pytest.mark.long
def test_a_killed_peer_comes_back_and_nobody_is_banned(tmp_path: Path) -> None:
    """[B1–B4] `kill -9` of two of seven in mid-step, started again a little later; the rest goes on meanwhile."""
    plan = SwarmPlan(peers=7, seed=5)
    killed = (1, 4)

    def stepped(step: int) -> Callable[[Seen], bool]:
        return lambda seen: step in seen.events.get(0, {})

    def returned(seen: Seen) -> set[str]:
        return {one.peer for event in seen.events[0].values() for one in event.returned}

    def trained_again(seen: Seen) -> bool:
        """Both of them say so, and so does the first peer: each tells over a pipe of its own, and none waits for another's."""
        back = all(any(not event.observed for event in seen.events[k].values() if event.step > 7) for k in killed)
        return back and returned(seen) == {f"peer{number}" for number in killed}

    manifest = rehearsal(plan, steps=3000, delta_s=0.5)  # more than it will take, however fast the machine
    manifest = dataclasses.replace(manifest, timeouts=dataclasses.replace(manifest.timeouts, compute=2.0, bulk=1.0))
    with Swarm(plan, manifest, tmp_path) as swarm:
        assert swarm.follow(until=stepped(5), most_s=PATIENCE_S)
        for number in killed:
            swarm.kill(number)
        assert swarm.follow(until=stepped(8), most_s=PATIENCE_S)
        for number in killed:
            swarm.start(number)
        assert swarm.follow(until=trained_again, most_s=PATIENCE_S), swarm.seen.notes
    assert swarm.agreement
    for number in killed:
        journal = sorted((folder_of(tmp_path, number) / "journal").glob("steps-*.jsonl"))
        lines = [line for file in journal for line in read_journal(file) if isinstance(line, Recorded)]
        steps = {decode_record(line.raw).step for line in lines}
        assert steps == set(range(max(steps) + 1)), "also those that the others made meanwhile"
    assert not any(event.banned for event in swarm.seen.events[0].values())


@pytest.mark.long
def test_all_are_killed_and_the_run_goes_on_when_they_are_back(tmp_path: Path) -> None:
    """[B5] `kill -9` of everyone at any moment loses no more than the step that they were in."""
    plan = SwarmPlan(peers=4, seed=6)
    manifest = rehearsal(plan, steps=24, delta_s=1.0)
    with Swarm(plan, manifest, tmp_path) as swarm:
        assert swarm.follow(until=lambda seen: 8 in seen.events.get(0, {}), most_s=PATIENCE_S)
        for number in range(plan.peers):
            swarm.kill(number)
        before = dict(swarm.seen.records[0])
        for number in range(plan.peers):
            swarm.start(number)
        assert swarm.follow(
            until=lambda seen: sum(ended.how == "done" for ended in seen.ended.values()) == plan.peers,
            most_s=PATIENCE_S,
        ), swarm.seen.notes
    assert swarm.agreement
    certified = {step: raw for step, raw in before.items() if step < max(before)}  # the last one may not be
    assert all(swarm.seen.records[0][step] == raw for step, raw in certified.items())
    written = {
        decode_record(line.raw)
        for journal in tmp_path.glob("*/journal/steps-*.jsonl")
        for line in read_journal(journal)
        if isinstance(line, Recorded)
    }
    assert sorted(record.step for record in written) == list(range(manifest.steps + 1)), "each once, and none lost"
    assert {record.incarnation for record in written} == {0, 1}
    assert not any(record.absent or record.banned for record in written)
    verdicts = list(verify_paths(expand([tmp_path]), manifest))
    assert [verdict.result for verdict in verdicts] == [Result.PROVED] * plan.peers, "each one's model [E4]"


def test_logs_have_times_and_sentences_and_no_raw_values(rehearsed: Swarm) -> None:
    for number in rehearsed.honest:
        folder = folder_of(rehearsed.out, number)
        lines = (folder / "log.txt").read_text().splitlines()
        assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \S", line) for line in lines)
        told = [line.partition(" ")[2] for line in lines]
        steps = [line for line in told if line.startswith("step ") and "/20  batch loss " in line]
        assert len(steps) >= rehearsed.manifest.steps, "every step has its line"
        assert any("is banned: " in line for line in told)
        assert not re.search(r"Stepped|StepNews|\w+\(step=", "\n".join(told))
        assert (folder / "output.txt").read_text() == "", "libraries had nothing to say, and nothing failed"


def test_the_model_loads_strictly_into_the_tasks_module(rehearsed: Swarm) -> None:
    file = rehearsed.model_file()
    assert file is not None
    rehearsed.manifest.make_task().model().load_state_dict(load_file(file), strict=True)


def test_a_rehearsal_takes_the_choices_of_a_simulation() -> None:
    plan = SwarmPlan(peers=4)
    chosen = {"steps": 7, "optimizer": "adamw", "rate": 0.5, "tau": 2.0}
    fresh = rehearsal(plan, "quadratic:dimension=40", **chosen)  # type: ignore[arg-type]
    again = rehearsal(plan, base=rehearsal(plan, "quadratic:dimension=40"), **chosen)  # type: ignore[arg-type]
    for run in (fresh, again):
        assert (run.steps, run.optimizer, run.rate, run.parameters.tau) == (7, "adamw", 0.5, 2.0)
    unchanged = rehearsal(plan, base=fresh)
    assert (unchanged.steps, unchanged.optimizer, unchanged.rate, unchanged.parameters.tau) == (7, "adamw", 0.5, 2.0)


def test_swarms_that_cannot_be_are_refused() -> None:
    with pytest.raises(SwarmError, match="withstand at most 1"):
        SwarmPlan(peers=4, byzantine=2)
    result = CliRunner().invoke(app, ["swarm", "--peers", "0"])
    assert isinstance(result.exception, OperatorError)
    assert "from 1 to 64" in str(result.exception)
