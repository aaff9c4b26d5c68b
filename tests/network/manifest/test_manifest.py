"""`run.toml`: read strictly, written readably, and the same run if and only if every field is the same."""

import dataclasses
import hashlib
import json
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.test_lists import TASK
from troth.crypto import Digest, Identity, PeerId, derive
from troth.errors import OperatorError
from troth.network.manifest.builder import ManifestOptions, beside, draft
from troth.network.manifest.manifest import Founder, Manifest, ManifestError, least_room, mismatches
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.run import Parameters
from troth.protocol.wire.primitives import Primitives
from troth.simulation import Scenario
from troth.simulation.lockstep.protocol_run import ProtocolSimulation
from troth.specs import SpecError
from troth.training import Problem, Task, TaskError, make_task
from troth.training.fingerprint import code_digest, code_file, data_digest
from troth.training.tasks.quadratic import Quadratic
from troth.training.work import TrainingWork

SPEC = "quadratic:dimension=40"
KEYS = sorted(Identity.from_secret(derive(0, "founder", k)).peer for k in range(5))
FOUNDERS = tuple(
    Founder(name, key, address)
    for name, key, address in zip(
        ("alice", "bob", "carol", "dave"),
        KEYS,
        ("10.0.0.1:7001", "peer.example.org:7002", "[2001:db8::1]:7003", ""),
        strict=False,
    )
)
PLAN = Manifest(
    name="a bowl",
    nonce=bytes(range(32)),
    task=SPEC,
    code=Digest(bytes(32)),
    data=Digest(bytes([1]) * 32),
    steps=10,
    optimizer="sgd:momentum=0.5",
    rate=0.1,
    parameters=Parameters(size=40, tau=0.1, byzantine=1),
    founders=FOUNDERS,
)


def replaced(manifest: Manifest, **changes: Any) -> Manifest:
    return dataclasses.replace(manifest, **changes)


def parameters(**changes: Any) -> dict[str, Any]:
    return {"parameters": dataclasses.replace(PLAN.parameters, **changes)}


def timeouts(**changes: Any) -> dict[str, Any]:
    return {"timeouts": dataclasses.replace(PLAN.timeouts, **changes)}


def first_founder(**changes: Any) -> dict[str, Any]:
    return {"founders": (dataclasses.replace(FOUNDERS[0], **changes), *FOUNDERS[1:])}


# By field: other values of the manifest, and the section that must tell.
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"name": "another bowl"}, "name"),
    "nonce": ({"nonce": bytes(32)}, "nonce"),
    "task": ({"task": "quadratic:dimension=40,noise=0.2"}, "task"),
    "device": ({"device": "cuda"}, "task"),
    "one_by_one": ({"one_by_one": True}, "task"),
    "code": ({"code": Digest(bytes([9]) * 32)}, "task code"),
    "data": ({"data": Digest(bytes([9]) * 32)}, "data"),
    "data_where": ({"data_where": "https://example.org"}, "data"),
    "seed": ({"seed": 1}, "initialisation"),
    "start": ({"start": Digest(bytes([9]) * 32)}, "initialisation"),
    "steps": ({"steps": 11}, "training options"),
    "optimizer": ({"optimizer": "adamw"}, "training options"),
    "rate": ({"rate": 0.1000000000000001}, "training options"),
    "schedule": ({"schedule": "linear"}, "training options"),
    "warmup": ({"warmup": 1}, "training options"),
    "parameters.size": (parameters(size=41), "protocol"),
    "parameters.tau": (parameters(tau=0.2), "protocol"),
    "parameters.byzantine": (parameters(byzantine=0), "protocol"),
    "parameters.validators": (parameters(validators=2), "protocol"),
    "parameters.projections": (parameters(projections=8), "protocol"),
    "parameters.beyond_guarantee": (parameters(beyond_guarantee=True), "protocol"),
    "parameters.tau_auto": (parameters(tau_auto=0.5), "protocol"),
    "parameters.tau_least": (parameters(tau_least=0.01), "protocol"),
    "parameters.tau_most": (parameters(tau_most=10.0), "protocol"),
    "parameters.deviation": (parameters(deviation=1e-5), "protocol"),
    "timeouts.delta": (timeouts(delta=2.5), "pace"),
    "timeouts.compute": (timeouts(compute=6.0), "pace"),
    "timeouts.bulk": (timeouts(bulk=6.0), "pace"),
    "timeouts.room": (timeouts(room=1 << 29), "pace"),
    "timeouts.stretch": (timeouts(stretch=3.0), "pace"),
    "founders.name": (first_founder(name="eve"), "founders"),
    "founders.key": (first_founder(key=KEYS[4]), "founders"),
    "founders.address": (first_founder(address="10.0.0.1:7009"), "founders"),
}

HOSTILE = ["nan", "inf", "-1", "0", "1e308", "-0.0", "2e-308", "true", "1979-05-27", "[]", "[[]]", "{}", "'x:y=z'"]
HOSTILE += ['""', '":"', '"a.py"', '"sgd:="', '"\\u0000"', '"\\u001b"', "'''\n'''"]
HOSTILE += ["9" * 400, "9" * 900, "0x" + "f" * 900, "18446744073709551616"]


class TestOneRun:
    def test_no_field_is_forgotten_here(self) -> None:
        nested = {"parameters": Parameters, "timeouts": Timeouts, "founders": Founder}
        fields = {field.name for field in dataclasses.fields(Manifest) if field.init and field.compare}
        deep = {f"{name}.{field.name}" for name, kind in nested.items() for field in dataclasses.fields(kind)}
        assert CHANGES.keys() == (fields - nested.keys()) | deep

    @pytest.mark.parametrize("field", CHANGES)
    def test_another_value_of_any_field_is_another_run_and_its_section_says_so(self, field: str) -> None:
        changes, section = CHANGES[field]
        other = replaced(PLAN, **changes)
        assert other != PLAN
        assert other.run.id != PLAN.run.id
        mine, theirs = PLAN.digests(), other.digests()
        assert mine.keys() == theirs.keys()
        assert [name for name in mine if mine[name] != theirs[name]] == [section]
        again = Manifest.from_bytes(other.to_toml().encode())
        assert again == other
        assert again.run.id == other.run.id
        assert again.digests() == theirs

    def test_one_founder_less_is_another_run(self) -> None:
        less = replaced(PLAN, founders=FOUNDERS[1:], **parameters(byzantine=0))
        assert less.run.id != PLAN.run.id

    def test_where_the_file_lies_how_it_is_ordered_and_what_comments_say_do_not_matter(self, tmp_path: Path) -> None:
        text = re.sub(r"#.*\n", "\n", PLAN.to_toml())
        blocks = text.split("[[founder]]")
        path = tmp_path / "other.toml"
        path.write_text("[[founder]]".join([blocks[0], *reversed(blocks[1:])]))
        assert Manifest.load(path) == PLAN
        assert Manifest.load(path).run.id == PLAN.run.id
        assert replaced(PLAN, founders=FOUNDERS[::-1]).founders == FOUNDERS

    def test_what_may_be_left_out_is_the_default(self) -> None:
        text = PLAN.to_toml()
        for name in (
            "device",
            "one_by_one",
            "where",
            "schedule",
            "warmup",
            "seed",
            "projections",
            "beyond_guarantee",
            "stretch",
        ):
            text = re.sub(rf"(?m)^{name} = .*\n", "", text)
        assert Manifest.from_bytes(text.encode()).run.id == PLAN.run.id

    def test_a_whole_number_is_the_same_as_its_fraction(self) -> None:
        whole = {"rate": 1, **parameters(tau=1), **timeouts(delta=1)}
        fractions = {"rate": 1.0, **parameters(tau=1.0), **timeouts(delta=1.0)}
        assert replaced(PLAN, **whole).run.id == replaced(PLAN, **fractions).run.id
        text = PLAN.to_toml().replace("delta_s = 2.0", "delta_s = 2")
        assert Manifest.from_bytes(text.encode()).run.id == PLAN.run.id

    def test_evidence_says_what_recomputing_a_gradient_needs(self) -> None:
        described = json.loads(PLAN.run.description)
        assert (described["task"], described["device"], described["one_by_one"]) == (SPEC, "cpu", False)

    def test_evidence_for_strangers_does_not_say_where_founders_live(self) -> None:
        assert all(founder.address not in PLAN.run.description.decode() for founder in FOUNDERS if founder.address)
        assert b'"alice"' in PLAN.run.description

    @given(
        tau=st.floats(2.0**-200, 2.0**200),
        rate=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
        seed=st.integers(-(2**63), 2**63 - 1),
        where=st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=200).filter(str.isprintable),
    )
    def test_round_trip(self, tau: float, rate: float, seed: int, where: str) -> None:
        manifest = replaced(PLAN, rate=rate, seed=seed, data_where=where, **parameters(tau=tau))
        again = Manifest.from_bytes(manifest.to_toml().encode())
        assert again == manifest
        assert again.run == manifest.run


class TestStrict:
    @pytest.mark.parametrize("section", ["", "task", "data", "training", "protocol", "pace", "founder"])
    def test_an_unknown_key_is_named(self, section: str) -> None:
        heading = {"": "format = 1", "founder": "[[founder]]"}.get(section, f"[{section}]")
        text = PLAN.to_toml().replace(heading, f"{heading}\nextra = 1", 1)
        with pytest.raises(ManifestError, match=rf"^{section}.*unknown key `extra`"):
            Manifest.from_bytes(text.encode())

    @pytest.mark.parametrize("key", ["format", "nonce", "spec", "code", "digest", "steps", "size", "tau", "delta_s"])
    def test_a_missing_key_is_named(self, key: str) -> None:
        with pytest.raises(ManifestError, match=f"missing key `{key}`"):
            Manifest.from_bytes(re.sub(rf"(?m)^{key} = .*\n", "", PLAN.to_toml()).encode())

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("format = 1", "format = 2", "written in format '2', this version of Troth reads format 1"),
            ("steps = 10", "steps = 10.0", "training.steps: Expected `int`, got `float`"),
            ("steps = 10", "steps = 0", "training.steps must be from 1 to 1,000,000, got 0"),
            ("rate = 0.1", "rate = nan", "training.rate must be a positive number, got nan"),
            ('"cosine"', '"cosin"', "unknown schedule 'cosin': did you mean cosine"),
            ("sgd:momentum=0.5", "sgd:momentum=2", "'sgd:momentum=2': momentum must"),
            ("tau = 0.1", "tau = inf", "tau must be a positive number"),
            ("byzantine = 1", "byzantine = 2", "2 liars among 4 peers with 1 validators: the guarantee needs"),
            ("size = 40", "size = 3", "a model of 3 parameters cannot be split among 4"),
            ("delta_s = 2.0", "delta_s = 0", "pace.delta_s must be above 0 and at most 86400, got 0"),
            ("delta_s = 2.0", "delta_s = nan", "pace.delta_s must be above 0"),
            ("stretch = 4.0", "stretch = 0.5", "pace.stretch must be from 1 to 100, got 0.5"),
            ("stretch = 4.0", "stretch = 101", "pace.stretch must be from 1 to 100, got 101"),
            ("stretch = 4.0", "stretch = inf", "pace.stretch must be from 1 to 100, got inf"),
            ("stretch = 4.0", "stretch = nan", "pace.stretch must be from 1 to 100, got nan"),
            ("room_bytes = 268435456", "room_bytes = 1000", "pace.room_bytes must be from 1,049,216"),
            (KEYS[0].hex(), KEYS[0].hex().upper(), "key: Expected 64 hexadecimal digits"),
            (KEYS[0].hex(), "00" * 32, "the key of founder alice is no Ed25519 public key"),
            (KEYS[0].hex(), KEYS[1].hex(), f"two founders have the key {KEYS[1].hex()}"),
            ('"bob"', '"Alice"', "two founders have the name alice"),
            ('"bob"', '"b b"', "a founder's name has 1 to 32 letters"),
            ("peer.example.org:7002", "10.0.0.1:7001", "two founders have the address 10.0.0.1:7001"),
            (SPEC, "../mine.py", "task.spec names '../mine.py': the task's file must lie beside the manifest"),
            (SPEC, "/tmp/mine.py", "task.spec names '/tmp/mine.py'"),
            ('"a bowl"', '"a\\u001b[2Jbowl"', "name must be one line of at most 64 characters, got 'a?"),
            ('"a bowl"', '""', "name must not be empty"),
            ("[task]", "[task", "not TOML: "),
        ],
    )
    def test_what_is_wrong_is_named(self, old: str, new: str, message: str) -> None:
        text = PLAN.to_toml()
        assert old in text
        with pytest.raises(ManifestError, match=re.escape(message)):
            Manifest.from_bytes(text.replace(old, new, 1).encode())

    @pytest.mark.parametrize(
        "address",
        ["host", "host:", ":7001", "host:0", "host:65536", "ho st:1", "::1:7001", "a@b:1", "[::1]", "h:7001\n"],
    )
    def test_addresses_are_host_and_port(self, address: str) -> None:
        with pytest.raises(ManifestError, match="founder alice must be"):
            Founder("alice", KEYS[0], address)

    def test_endpoints(self) -> None:
        assert [founder.endpoint for founder in FOUNDERS] == [
            ("10.0.0.1", 7001),
            ("peer.example.org", 7002),
            ("2001:db8::1", 7003),
            None,
        ]

    def test_size_lines_and_founders_are_bounded(self) -> None:
        for raw, message in (
            (b"#\n" * (1 << 19) + b"#", "larger than 1,048,576 bytes"),
            (b"a." * 600 + b"a = 1", "a line has more than 1024 bytes"),
            (b"\xff", "not a text in UTF-8"),
            (b"a = " + b"[\n" * 10_000, "not TOML"),
        ):
            with pytest.raises(ManifestError, match=message):
                Manifest.from_bytes(raw)
        many = [f'[[founder]]\nname = "n{k}"\nkey = "{secrets.token_hex(32)}"\n' for k in range(257)]
        text = PLAN.to_toml().split("[[founder]]")[0] + "".join(many)
        with pytest.raises(ManifestError, match="founder: Expected `array` of length <= 256"):
            Manifest.from_bytes(text.encode())

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ManifestError, match="cannot read the manifest"):
            Manifest.load(tmp_path / "run.toml")
        (tmp_path / "run.toml").write_text("x = 1")
        with pytest.raises(ManifestError, match=r"run\.toml: unknown key `x`"):
            Manifest.load(tmp_path / "run.toml")

    @given(st.binary(max_size=200))
    def test_any_bytes(self, raw: bytes) -> None:
        with pytest.raises(ManifestError):
            Manifest.from_bytes(raw)

    @given(
        line=st.integers(0, PLAN.to_toml().count("\n")),
        value=st.sampled_from(HOSTILE),
    )
    def test_any_value_anywhere(self, line: int, value: str) -> None:
        lines = PLAN.to_toml().split("\n")
        lines[line] = re.sub(r"=.*", lambda _: f"= {value}", lines[line])
        self._read_or_refused("\n".join(lines).encode())

    @given(at=st.integers(0, len(PLAN.to_toml())), gone=st.integers(0, 40), there=st.binary(max_size=8))
    def test_any_damage(self, at: int, gone: int, there: bytes) -> None:
        raw = PLAN.to_toml().encode()
        self._read_or_refused(raw[:at] + there + raw[at + gone :])

    def _read_or_refused(self, raw: bytes) -> None:
        try:
            manifest = Manifest.from_bytes(raw)
        except ManifestError as error:
            refused = str(error)
        else:
            refused = ""
            assert Manifest.from_bytes(manifest.to_toml().encode()).run.id == manifest.run.id
        assert refused.isprintable()


class TestOnThisMachine:
    def test_a_draft_fits_the_machine_that_wrote_it(self) -> None:
        manifest = draft(SPEC, FOUNDERS).manifest
        task = manifest.make_task()
        assert mismatches(manifest, task, manifest.problem(task)) == []
        assert manifest.parameters == Parameters(size=40, tau=Quadratic.tau, byzantine=1)
        assert (manifest.steps, manifest.optimizer, manifest.rate) == (Quadratic.steps, "sgd", Quadratic.rate)
        assert draft(SPEC, FOUNDERS).manifest.run.id != manifest.run.id, "a fresh nonce"

    def test_the_same_bits_and_the_same_beginning_as_a_simulation(self) -> None:
        manifest = draft("digits-cnn", FOUNDERS, ManifestOptions(seed=7)).manifest
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

    def test_work_is_of_the_kind_that_is_asked_for(self) -> None:
        class Mine(TrainingWork):
            pass

        problem = PLAN.problem(PLAN.make_task())
        mine: Mine = PLAN.work(problem, Primitives(), Mine)
        assert type(mine) is Mine
        assert type(PLAN.work(problem, Primitives())) is TrainingWork
        assert len(PLAN.rates()) == PLAN.steps

    def test_names(self) -> None:
        assert [PLAN.name_of(key) for key in KEYS] == ["alice", "bob", "carol", "dave", KEYS[4].hex()[:8]]
        assert [PLAN.founder(key) for key in KEYS] == [*FOUNDERS, None]

    @pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
    def test_a_device_that_is_not_here(self) -> None:
        with pytest.raises(ManifestError, match="PyTorch sees no CUDA device"):
            replaced(PLAN, device="cuda").problem(make_task(SPEC))

    def test_another_device_needs_tolerant_audits(self) -> None:
        with pytest.raises(ManifestError, match="computes on cpu, so that audits are exact: cuda will not do"):
            PLAN.problem(make_task(SPEC), device="cuda")

    def test_other_code_size_and_data_are_named_with_the_way_out(self) -> None:
        right = draft(SPEC, FOUNDERS, ManifestOptions(data_where="ask alice")).manifest
        task = right.make_task()
        problem = right.problem(task)

        def only(manifest: Manifest) -> str:
            (line,) = mismatches(manifest, task, problem)
            assert "\n" not in line
            return line

        code = only(replaced(right, code=Digest(bytes(32))))
        assert code.startswith("task code: ")
        assert "quadratic.py is not the one agreed on" in code
        assert "install the version of Troth" in code
        size = only(replaced(right, parameters=dataclasses.replace(right.parameters, size=41)))
        assert size.startswith("model size: 40 parameters here, 41 agreed on; compare")
        data = only(replaced(right, data=Digest(bytes(32))))
        assert data.startswith("data: not the one agreed on")
        assert data.endswith("where to get it: ask alice")

    def test_all_that_differs_is_said_at_once(self) -> None:
        wrong = replaced(PLAN, parameters=dataclasses.replace(PLAN.parameters, size=41))
        task = wrong.make_task()
        assert [line.split(":")[0] for line in mismatches(wrong, task, wrong.problem(task))] == [
            "task code",
            "model size",
            "data",
        ]


class TestTaskFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """With a colon, which separates options in a task's name and is an ordinary character in a folder's."""
        folder = tmp_path / "a:b"
        folder.mkdir()
        (folder / "mine.py").write_text(TASK)
        return folder

    def test_a_file_beside_the_manifest_is_found_from_anywhere(self, folder: Path) -> None:
        manifest = draft("mine.py", FOUNDERS[:2], folder=folder).manifest
        (folder / "run.toml").write_text(manifest.to_toml())
        again = Manifest.load(folder / "run.toml")
        assert again.run.id == manifest.run.id
        task = again.make_task()
        assert mismatches(again, task, again.problem(task)) == []

    def test_another_file_than_agreed_on_is_not_even_run(self, folder: Path) -> None:
        manifest = draft("mine.py", FOUNDERS[:2], folder=folder).manifest
        (folder / "mine.py").write_text("raise SystemExit('run!')")
        with pytest.raises(ManifestError, match=r"mine\.py is not the one agreed on .* ask for the file"):
            manifest.make_task()
        (folder / "mine.py").unlink()
        with pytest.raises(ManifestError, match=r"task code: cannot read .* ask for the file"):
            manifest.make_task()

    def test_the_digest_is_the_one_that_sha256sum_shows(self, folder: Path) -> None:
        assert code_digest(folder / "mine.py") == hashlib.sha256(TASK.encode()).digest()
        assert code_file("digits", make_task("digits")).name == "digits.py"
        assert code_file("digits-cnn", make_task("digits-cnn")).name == "digits.py"

    def test_how_a_manifest_names_it(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder.parent)
        (folder.parent / "sub").mkdir()
        (folder.parent / "sub" / "mine.py").write_text(TASK)
        assert beside("digits:hidden=8", folder) == "digits:hidden=8"
        assert beside("sub/mine.py:a=1", Path()) == "sub/mine.py:a=1"
        assert beside("sub/mine.py:a=1", Path("sub")) == "mine.py:a=1"
        with pytest.raises(ManifestError, match="put it beside the manifest"):
            beside("sub/mine.py", folder)
        with pytest.raises(SpecError, match=r"no task file at 'none\.py'"):
            beside("none.py", folder)


@dataclasses.dataclass(frozen=True)
class Filed(Quadratic):
    """With files, which its batches may ignore."""

    files: tuple[Path, ...] = ()
    shift: float = 0.0

    def data_files(self) -> tuple[Path, ...]:
        return self.files

    def batch(self, draw: Any) -> dict[str, torch.Tensor]:
        return {"noise": super().batch(draw)["noise"] + self.shift}


class TestData:
    def test_the_digest_sees_files_their_order_and_batches(self, tmp_path: Path) -> None:
        one, two, copy = tmp_path / "one", tmp_path / "two", tmp_path / "copy"
        one.write_bytes(b"1")
        two.write_bytes(b"2")
        copy.write_bytes(b"1")
        tasks: list[Task] = [
            Filed(),
            Filed(files=(one,)),
            Filed(files=(two,)),
            Filed(files=(one, two)),
            Filed(files=(two, one)),
            Filed(shift=1.0),
        ]
        assert len({data_digest(task) for task in tasks}) == len(tasks)
        assert data_digest(Filed(files=(copy,))) == data_digest(Filed(files=(one,))), "names do not count"
        one.write_bytes(b"1 ")
        assert data_digest(Filed(files=(copy,))) != data_digest(Filed(files=(one,)))

    def test_a_missing_file_is_named_before_the_task_trips_over_it(self, tmp_path: Path) -> None:
        task = Filed(dimension=40, files=(tmp_path / "train.bin",))
        there = replaced(PLAN, data_where="https://example.org/train.bin")
        with pytest.raises(ManifestError, match=r"train\.bin is not there; .* https://example\.org/train\.bin"):
            there.problem(task)
        assert mismatches(there, task, Problem(task))[-1].startswith("data: cannot read data file")
        with pytest.raises(TaskError, match="cannot read data file"):
            data_digest(task)


class TestDraft:
    def test_times_are_generous_and_room_grows_with_the_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        small = draft(SPEC, FOUNDERS).manifest.timeouts
        assert (small.delta, small.compute, small.bulk, small.room) == (2.0, 5.0, 5.0, 1 << 28)
        monkeypatch.setattr("troth.network.manifest.builder._SLOWEST_LINE", 100.0)
        monkeypatch.setattr(Timeouts, "room", 1)
        large = draft("quadratic:dimension=1001", FOUNDERS).manifest.timeouts
        assert large.bulk == 81.0, "twice 4004 bytes"
        assert large.room == 4 * least_room(1001)
        assert draft(SPEC, FOUNDERS, ManifestOptions(compute_s=0.5)).manifest.timeouts.compute == 0.5
        assert (small.stretch, draft(SPEC, FOUNDERS, ManifestOptions(stretch=1)).manifest.timeouts.stretch) == (
            4.0,
            1.0,
        )

    @pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
    def test_a_device_that_is_not_here(self) -> None:
        with pytest.raises(ManifestError, match="device cuda: PyTorch sees no CUDA device here"):
            draft(SPEC, FOUNDERS, ManifestOptions(device="cuda"))

    def test_data_that_is_not_here(self, tmp_path: Path) -> None:
        absent = """
    def data_files(self):
        from pathlib import Path
        return [Path("none.bin")]
"""
        (tmp_path / "mine.py").write_text(TASK + absent)
        with pytest.raises(ManifestError, match=r"data: none\.bin is not there"):
            draft("mine.py", FOUNDERS[:2], folder=tmp_path)

    @pytest.mark.parametrize(("count", "most"), [(1, 0), (3, 0), (4, 1), (5, 1)])
    def test_as_many_liars_as_can_be_withstood(self, count: int, most: int) -> None:
        founders = [Founder(f"n{k}", key, "") for k, key in enumerate(KEYS[:count])]
        assert draft(SPEC, founders).manifest.parameters.byzantine == most

    @pytest.mark.parametrize(
        "make",
        [
            lambda: draft(SPEC, ()),
            lambda: draft("quadratic:dimension=3", FOUNDERS),
            lambda: draft(SPEC, FOUNDERS, ManifestOptions(tau=-1.0)),
            lambda: draft(SPEC, FOUNDERS, ManifestOptions(byzantine=3)),
            lambda: draft(SPEC, FOUNDERS, ManifestOptions(validators=-1)),
            lambda: draft(SPEC, (FOUNDERS[0], FOUNDERS[0])),
            lambda: draft(SPEC, (Founder("x", PeerId(KEYS[0]), "x:1"), Founder("x", PeerId(KEYS[1]), "x:2"))),
        ],
    )
    def test_wishes_that_cannot_be_granted(self, make: Callable[[], object]) -> None:
        with pytest.raises(OperatorError):
            make()
