"""`troth verify`: what it says, and its exit codes."""

import json
import os
import re
import sys
from pathlib import Path

import msgspec
import pytest

from tests.cli.test_lists import TASK
from troth.cli import main
from troth.crypto import Identity, PeerId, Slot, blob_digest, derive
from troth.evidence.file_format import FORMAT, MOST_BYTES, BanFile, Founding, SignedMessage, checksum, to_text
from troth.evidence.verify import verify_ban
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.manifest import Founder
from troth.protocol.core.records import Judgement, StepRecord, encode_record, record_bytes_to_sign
from troth.protocol.core.run import Parameters, Run
from troth.protocol.history import SignedRecord, sign_off
from troth.protocol.wire.messages import Accusation, Accuse, Ballot, ChargeKind, GuiltySide, Phase, Vote
from troth.protocol.wire.phases import seal

RUN = [
    "simulate",
    "--task",
    "quadratic:dimension=60",
    "--peers",
    "7",
    "--byzantine",
    "2",
    "--attack-start",
    "3",
    "--steps",
    "30",
]


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert call(*RUN, "--seed", "1", "--out", str(folder)) == 0
    return folder


def known(run: Path) -> tuple[str, str]:
    return "--run", str(run / "evidence" / "run")


def test_every_ban_of_a_run_verifies_and_is_recomputed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert len(summary["banned"]) == 2
    assert summary["honest_banned"] == 0
    assert summary["agreement"] is True
    for ban in summary["banned"]:
        evidence = run / "evidence" / ban["evidence"]
        assert call("verify", str(evidence), *known(run)) == 0
        (said,) = capsys.readouterr().out.splitlines()
        assert said.startswith(f"{evidence}: proved: peer{ban['peer']} (")
        assert said.endswith("Recomputed here: the ban is right, whatever anyone voted.")


def test_folders_and_many_files_get_a_line_each_and_a_summary(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted((run / "evidence").glob("ban-*.json"))
    assert call("verify", str(run), *known(run)) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert sorted(line.split(": ")[0] for line in lines) == [str(file) for file in files]
    assert last == "2 files: 2 proved"
    assert call("verify", str(run), str(files[0]), *known(run)) == 0
    assert capsys.readouterr().out.endswith("2 files: 2 proved\n"), "each once"
    wrong = tmp_path / "ban-wrong.json"
    wrong.write_text("{}")
    assert call("verify", str(files[0]), str(tmp_path), *known(run)) == 1
    assert capsys.readouterr().out.endswith("2 files: 1 proved; 1 not proved\n")


def test_verdicts_for_programs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", str(run), *known(run), "--json") == 0
    verdicts = json.loads(capsys.readouterr().out)
    assert {verdict["verdict"] for verdict in verdicts} == {"proved"}
    assert all(verdict["proved"] and len(verdict["banned"]) == 64 for verdict in verdicts)
    assert call("verify", str(run), "--json") == 1
    verdicts = json.loads(capsys.readouterr().out)
    assert {verdict["verdict"] for verdict in verdicts} == {"unknown run"}
    assert not any(verdict["proved"] or "banned" in verdict for verdict in verdicts)
    assert all("--run" in verdict["reason"] for verdict in verdicts)


def test_without_the_state_signatures_and_votes_are_checked(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """[E6] An exit code of its own: a script that trusts no quorum must not take votes for a proof."""
    evidence = next((run / "evidence").glob("*.json"))
    alone = tmp_path / evidence.name
    alone.write_text(evidence.read_text())
    assert call("verify", str(alone), *known(run)) == 3
    assert ": rests on votes (not recomputed: state-" in capsys.readouterr().out
    assert call("verify", "--no-recompute", str(evidence), *known(run)) == 3
    assert ": rests on votes (not recomputed, as asked): " in capsys.readouterr().out


def test_without_the_run_nothing_is_proved(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """[E1] The file may come from whoever invented the run."""
    evidence = next((run / "evidence").glob("*.json"))
    assert call("verify", str(evidence)) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"{evidence}: unknown run: ")
    assert "proved" not in said.lower()
    assert "banned" not in said
    assert (run / "evidence" / "run").read_text().split()[0] in said
    assert "--run" in said


def test_a_ban_of_another_run_is_not_proof(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evidence = next((run / "evidence").glob("*.json"))
    assert call("verify", str(evidence), "--run", "ab" * 32) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"{evidence}: not proved: the file is about run ")
    assert "ab" * 32 in said


def test_the_run_is_named_by_its_id_or_its_manifest(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = str(next((run / "evidence").glob("*.json")))
    name = (run / "evidence" / "run").read_text().split()[0]
    assert call("verify", evidence, "--run", name) == 0
    assert call("verify", evidence, "--run", name.upper()) == 0
    founders = tuple(Founder(f"peer{k}", Identity.from_secret(derive(0, "founder", k)).peer, "") for k in range(4))
    other = build_manifest("quadratic:dimension=60", founders).manifest
    (tmp_path / "run.toml").write_text(other.to_toml())
    capsys.readouterr()
    assert call("verify", evidence, "--run", str(tmp_path / "run.toml")) == 1
    assert f"not about run {other.run.id.hex()}" in capsys.readouterr().out


@pytest.mark.parametrize("named", ["none.toml", "abc", "a.toml", "a.txt", "folder"])
def test_a_run_that_cannot_be_read_is_an_operators_mistake(
    run: Path, tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = str(next((run / "evidence").glob("*.json")).resolve())
    monkeypatch.chdir(tmp_path)
    for junk in ("a.toml", "a.txt"):
        Path(junk).write_bytes(b"\xff\x00" + bytes(200))
    Path("folder").mkdir()
    assert call("verify", evidence, "--run", named) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("troth: ")
    assert "run.toml" in said.err or "a.toml" in said.err


def test_an_invented_run_proves_nothing_about_whom_it_names(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """[E1] Four liars found a run with a fifth's public key in it, and ban it there: all signatures fit."""
    framed = tmp_path / "framed.json"
    victim, text = framed_ban()
    framed.write_text(text)
    assert call("verify", str(framed)) == 1
    assert call("verify", str(framed), *known(run)) == 1
    said = capsys.readouterr()
    assert victim.hex() not in said.out + said.err


def framed_ban() -> tuple[PeerId, str]:
    liars = [Identity.from_secret(derive(0, "liar", k)) for k in range(4)]
    victim = Identity.from_secret(derive(0, "victim")).peer  # its public key is all that is used
    keys = tuple(sorted([victim, *(one.peer for one in liars)]))
    invented = Run(keys, b'{"task":"digits"}', Parameters(size=4810, tau=1.0, byzantine=1), derive(0, "nonce"))
    accuser, zero = liars[0], bytes(32)
    judgement = Judgement(accuser.peer, victim, ChargeKind.REPORT, 0, 0, 0, GuiltySide.ACCUSED)
    record = StepRecord(
        0, keys, keys, (zero,) * 5, 5, zero, zero, zero, zero, True, 1, 1.0, 0.1, 1.0, 1.0, 1.0, (judgement,)
    )
    digest = blob_digest(encode_record(record))
    signatures = {one.peer: one.sign(record_bytes_to_sign(invented.id, 0, one.peer, digest)) for one in liars}
    accuse = Accuse((Accusation(victim, ChargeKind.REPORT, 0, 0),), zero)
    vote = Vote((Ballot(accuser.peer, victim, ChargeKind.REPORT, 0, 0, GuiltySide.ACCUSED),))

    def signed(who: Identity, message: Accuse | Vote, phase: Phase) -> SignedMessage:
        envelope = seal(who, Slot(invented.id, 0, phase), message)
        return SignedMessage(who.peer.hex(), envelope.payload.hex(), envelope.signature.hex())

    unsummed = BanFile(
        format=FORMAT,
        banned=victim.hex(),
        run=Founding(
            invented.nonce.hex(),
            invented.description.decode(),
            [key.hex() for key in keys],
            invented.parameters.plain(),
            {},
        ),
        history=[],
        before=[],
        accusation=signed(accuser, accuse, Phase.ACCUSE),
        votes=[signed(one, vote, Phase.VOTE) for one in sorted(liars, key=lambda one: one.peer)],
        equivocation=[],
        phase=0,
        exhibit=None,
        record=SignedRecord.of(sign_off(record, signatures)),
        checksum="",
    )
    text = to_text(msgspec.structs.replace(unsummed, checksum=checksum(unsummed)))
    assert verify_ban(text).banned == victim, "in itself it is all right, or this would show nothing"
    return victim, text


def test_a_damaged_file_is_not_proof(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evidence = next((run / "evidence").glob("*.json"))
    damaged = tmp_path / "damaged.json"
    text = evidence.read_text()
    damaged.write_text(text.replace('"banned": "', '"banned": "0', 1))
    assert call("verify", str(damaged), *known(run)) == 1
    assert ": not proved: " in capsys.readouterr().out
    damaged.write_bytes(b"\xff\xfe")
    assert call("verify", str(damaged)) == 1


def test_a_wrong_state_takes_nothing_from_the_signatures(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else anybody who can put a file beside the evidence could make a right ban look wrong."""
    evidence = next((run / "evidence").glob("*.json"))
    (tmp_path / evidence.name).write_text(evidence.read_text())
    for state in (run / "evidence").glob("*.safetensors"):
        raw = bytearray(state.read_bytes())
        raw[-1] ^= 1
        (tmp_path / state.name).write_bytes(bytes(raw))
    assert call("verify", str(tmp_path / evidence.name), *known(run)) == 3
    said = capsys.readouterr().out
    assert (
        ": rests on votes (not recomputed: the state beside the file is not the one that the members signed): " in said
    )


def test_a_missing_file_is_an_operators_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", str(tmp_path / "none.json"), "--run", "ab" * 32) == 2
    assert capsys.readouterr().err.startswith("troth: cannot read")
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    assert call("verify", str(large), "--run", "ab" * 32) == 2
    assert "cannot be read: it is too large" in capsys.readouterr().out
    assert call("verify", str(tmp_path / "empty"), "--run", "ab" * 32) == 2
    (tmp_path / "empty").mkdir()
    assert call("verify", str(tmp_path / "empty"), "--run", "ab" * 32) == 2
    assert "no evidence" in capsys.readouterr().err


def test_one_file_that_can_be_read_makes_it_a_matter_of_proof(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 says that nothing was checked; with anything checked it is 0 or 1."""
    evidence = next((run / "evidence").glob("*.json"))
    pipe = tmp_path / "ban-pipe.json"
    os.mkfifo(pipe)
    assert call("verify", str(evidence), str(pipe), *known(run)) == 1
    assert capsys.readouterr().out.endswith("2 files: 1 proved; 1 cannot be read\n")
    assert call("verify", str(tmp_path), *known(run)) == 2
    assert "no ordinary file" in capsys.readouterr().out


def test_evidence_is_explained_in_words(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A paragraph each; voters and members are named, and a file that proves nothing is not explained."""
    file = min((run / "evidence").glob("ban-*.json"))
    assert call("verify", str(file), *known(run), "--explain") == 0
    proof, lines = verify_ban(file.read_text()), capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["Claimed:", "Who", "Voted", "Can", "Says"]
    assert all(line.startswith("    ") for line in lines[1:])
    assert "committed to a gradient in step" in lines[1]
    assert all(f"({member.hex()[:8]}…)" in lines[2] for member in proof.roster.members)
    assert all(f"({voter.hex()[:8]}…)" in lines[3] for voter in proof.voters)
    assert lines[3].count("peer") == len(proof.voters)
    assert len(proof.voters) == proof.roster.quorum
    assert f"from the state before that step ({proof.state.hex()[:8] if proof.state else ''}…)" in lines[4]
    assert call("verify", str(file), "--explain") == 1
    assert capsys.readouterr().out.count("\n") == 1


def test_the_hint_of_a_simulation_recomputes_a_task_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(TASK.replace("nn.Linear(1, 1)", "nn.Sequential(nn.Linear(1, 5), nn.Linear(5, 1))"))
    arguments = ["--task", "mine.py", "--peers", "5", "--byzantine", "1", "--attack-start", "1", "--steps", "25"]
    assert call("simulate", *arguments, "--tau", "1", "--out", "out") == 0
    hint = re.search(r"check one with: troth (verify FILE .*)\)\n", capsys.readouterr().out)
    assert hint is not None
    file = min(Path("out/evidence").glob("ban-*.json"))
    assert call(*hint[1].replace("FILE", str(file)).split()) == 0
    assert "Recomputed here: the ban is right" in capsys.readouterr().out


def test_a_long_check_says_once_where_it_is(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["troth.cli.progress"], "_PATIENCE_S", 0.001)
    assert call("verify", str(run), *known(run)) == 0
    assert capsys.readouterr().err.count("checking ") == 1, "and again after ten seconds"


def test_beyond_the_guarantee_is_refused_unless_said_and_then_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beyond = ["simulate", "--task", "quadratic:dimension=64", "--peers", "16", "--byzantine", "8", "--steps", "3"]
    beyond += ["--attack-start", "1", "--out", str(tmp_path / "out")]
    assert call(*beyond) == 2
    assert "--beyond-guarantee" in capsys.readouterr().err
    assert call(*beyond, "--beyond-guarantee") == 0
    said = capsys.readouterr()
    assert "none: this run was asked to go beyond it" in said.out
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["beyond_guarantee"] is True


def test_help_without_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    assert capsys.readouterr().out.count("\n") > 10
