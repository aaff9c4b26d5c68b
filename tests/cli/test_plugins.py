"""Plug-ins at the command line: users' own files in every command, the templates, the lists."""

import csv
import json
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from safetensors.torch import load_file

from tests.cli.conftest import Troth
from troth.training import TaskError, make_task
from troth.workshop.simulation import Started

KINDS = ("attack", "defence", "task")
FEW = ("--peers", "4", "--steps", "3", "--byzantine", "1", "--attack-start", "1", "--out", "here")
SMALL = ("simulate", "--task", "quadratic:dimension=20", *FEW)
FILES = {"attack": "my_attack.py", "defence": "my_rule.py", "task": "my_task.py"}


@pytest.fixture
def examples(troth: Troth) -> Troth:
    """The templates in the current folder."""
    for kind, file in FILES.items():
        Path(file).write_text(troth("example", kind).out, encoding="utf-8")
    return troth


@pytest.fixture(autouse=True)
def _same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


class TestExamples:
    def test_are_listed(self, troth: Troth) -> None:
        done = troth("example")
        assert done.code == 0
        for kind, file in FILES.items():
            assert f"troth example {kind} > {file}" in done.out

    def test_an_unknown_one(self, troth: Troth) -> None:
        done = troth("example", "attac")
        assert done.code == 2
        assert done.err.count("\n") == 1

    @pytest.mark.parametrize("kind", KINDS)
    def test_are_short(self, troth: Troth, kind: str) -> None:
        assert troth("example", kind).out.count("\n") < 60

    def test_attack(self, examples: Troth) -> None:
        done = examples(*SMALL, "--attack", "my_attack.py", "--json")
        assert done.code == 0
        assert json.loads(done.out)["attack"] == "my_attack.py"
        assert json.loads(done.out)["attacked_steps"] >= 1

    def test_defence(self, examples: Troth) -> None:
        done = examples(*SMALL, "--defence", "my_rule.py:middle_mean:spare=1", "--json")
        assert done.code == 0
        assert json.loads(done.out)["defence"] == "my_rule.py:middle_mean:spare=1"

    def test_task(self, examples: Troth) -> None:
        checked = examples("tasks", "--check", "my_task.py")
        assert "my_task.py is pure" in checked.out
        assert "49 trained" in checked.out
        done = examples("simulate", "--task", "my_task.py:Waves:hidden=3", *FEW)
        assert done.code == 0
        assert "my_task.py:Waves:hidden=3 (10 parameters)" in done.out
        make_task("my_task.py:hidden=3").model().load_state_dict(load_file("here/model.safetensors"))

    def test_all_three_together_learn_among_liars(self, examples: Troth) -> None:
        own = ("--task", "my_task.py", "--attack", "my_attack.py", "--defence", "my_rule.py")
        done = examples(
            "simulate", *own, "--peers", "5", "--byzantine", "1", "--attack-start", "10", "--steps", "60", "--json"
        )
        summary = json.loads(done.out)
        assert summary["metrics"]["loss"] < summary["curve"][0]["loss"] / 3


class TestEveryCommand:
    def test_doctor(self, examples: Troth) -> None:
        done = examples(
            "doctor", "--task", "my_task.py:hidden=2", "--peers", "2", "--seeds", "2", "--steps", "2", "--json"
        )
        assert done.code == 0
        assert json.loads(done.out)["parameters"] == 7

    def test_new(self, examples: Troth) -> None:
        for name in ("a", "b"):
            examples("key", "new", f"{name}.key")
        founders = [
            part for k, name in enumerate("ab") for part in ("--founder", f"{name}={name}.pub@127.0.0.1:{7000 + k}")
        ]
        done = examples("new", "run.toml", "--task", "my_task.py:Waves:hidden=2", *founders)
        assert done.code == 0, done.err
        assert "my_task.py" in done.out.partition("Next: ")[2]
        assert 'spec = "my_task.py:Waves:hidden=2"' in Path("run.toml").read_text(encoding="utf-8")

    @pytest.mark.parametrize("spec", ["../my_task.py:Waves", "sub/../../my_task.py:Waves:hidden=2"])
    def test_a_manifest_names_no_file_elsewhere(self, examples: Troth, spec: str) -> None:
        """A manifest comes from somebody else: a name behind the file must not hide where the file is."""
        self.test_new(examples)
        text = Path("run.toml").read_text(encoding="utf-8").replace("my_task.py:Waves:hidden=2", spec)
        Path("other.toml").write_text(text, encoding="utf-8")
        done = examples("join", "other.toml", "--identity", "a.key")
        assert done.code == 2
        assert "must lie beside the manifest" in done.err

    @pytest.mark.long
    def test_a_manifests_file_is_not_run_unless_it_is_the_one_agreed_on(self, examples: Troth) -> None:
        self.test_new(examples)
        task = Path("my_task.py")
        task.write_text(task.read_text(encoding="utf-8") + "\nopen('it-was-run', 'w')\n", encoding="utf-8")
        done = examples("join", "run.toml", "--identity", "a.key")
        assert done.code == 2
        assert "my_task.py is not the one agreed on" in done.err
        assert not Path("it-was-run").exists()


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("import nothing_like_it", "cannot use 'mine.py', line 1: ModuleNotFoundError: No module named"),
            ("def f(:\n", "cannot use 'mine.py', line 1: SyntaxError: invalid syntax"),
            ("\n1 / 0", "cannot use 'mine.py', line 2: ZeroDivisionError: division by zero"),
            ("", "'mine.py' defines 0 "),
        ],
    )
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_file_that_cannot_be_used(self, troth: Troth, kind: str, text: str, message: str) -> None:
        Path("mine.py").write_text(text)
        done = troth("simulate", f"--{kind}", "mine.py")
        assert done.code == 2
        assert done.err.startswith(f"troth: {message}")
        assert done.err.count("\n") == 1
        assert [path.name for path in Path().iterdir()] == ["mine.py"]

    @pytest.mark.parametrize(
        ("option", "text"),
        [
            (
                "--attack",
                "from troth.attacks import GradientAttack\nclass A(GradientAttack):\n"
                "    def forge(self, own_BD, honest_HD):\n        return own_BD.no_such_thing\n",
            ),
            (
                "--attack",
                "from troth.attacks import GradientAttack\nfrom troth.workshop.attacks.base import ColludingChannel\n"
                "class C(ColludingChannel):\n    async def announce(self, slot, message, view):\n"
                "        raise OSError('a\\nb') if slot.step else KeyError('c')\n"
                "class A(GradientAttack):\n    behaviour = C\n",
            ),
            (
                "--defence",
                "calls = []\ndef rule(vectors_PD):\n    calls.append(1)\n"
                "    return vectors_PD[0] if len(calls) < 4 else calls[9]\n",
            ),
        ],
        ids=["in forge", "in the protocol", "in a rule"],
    )
    def test_an_exception_in_the_middle_of_a_run(self, troth: Troth, option: str, text: str) -> None:
        Path("mine.py").write_text(text)
        done = troth(*SMALL, option, "mine.py")
        assert done.code == 2
        assert done.err.startswith(f"troth: '{Path('mine.py').resolve()}', line ")
        assert done.err.count("\n") == 1
        assert done.out == ""
        assert [path.name for path in Path().iterdir()] == ["mine.py"], "no empty folder is left"

    def test_our_own_bug_is_not_blamed_on_a_file(self, examples: Troth, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: object) -> None:
            raise RuntimeError("a bug of ours")

        monkeypatch.setattr("troth.workshop.simulation.protocol_run._agree", broken)
        with pytest.raises(RuntimeError, match="a bug of ours"):
            examples(*SMALL, "--attack", "my_attack.py")

    def test_readmes_two_parameters_among_sixteen(self, troth: Troth) -> None:
        done = troth("simulate", "--task", "quadratic:dimension=2", "--byzantine", "3")
        assert done == (
            2,
            "",
            "troth: --peers 16 is too many for a model of 2 parameters: every peer looks after a part of it; take at most 2 "
            "--peers, or a larger model\n",
        )
        assert list(Path().iterdir()) == []

    def test_what_a_file_prints_does_not_spoil_the_json(self, examples: Troth) -> None:
        text = Path("my_attack.py").read_text(encoding="utf-8")
        Path("my_attack.py").write_text(
            text.replace('        """Rows', '        print("forging")\n        """Rows') + "print('hi')\n"
        )
        done = examples(*SMALL, "--attack", "my_attack.py", "--json")
        assert json.loads(done.out)["steps"] == 3
        assert "hi\nforging\n" in done.err


class TestResults:
    def test_the_curve_is_a_table(self, troth: Troth) -> None:
        assert troth(*SMALL, "--evaluate-every", "2").code == 0
        with Path("here/curve.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == ["step", "loss", "distance", "batch_loss", "attacked", "alive", "banned", "absent"]
        assert [row["step"] for row in rows] == ["0", "1", "2", "3"]
        assert [bool(row["loss"]) for row in rows] == [True, False, True, True]
        summary = json.loads(Path("here/summary.json").read_text())
        assert [float(row["loss"]) for row in rows if row["loss"]] == [point["loss"] for point in summary["curve"]]
        assert sum(int(row["attacked"]) for row in rows) == summary["attacked_steps"] > 0
        assert int(rows[-1]["banned"]) == len(summary["banned"])

    def test_checkpoints_on_the_way_and_a_run_from_one(self, troth: Troth) -> None:
        assert troth(*SMALL, "--checkpoint-every", "2").code == 0
        files = sorted(Path("here/checkpoints").iterdir())
        assert [file.name for file in files] == ["step-000000002.safetensors", "step-000000003.safetensors"]
        assert files[-1].read_bytes() == Path("here/model.safetensors").read_bytes()
        done = troth(*SMALL, "--from", "here", "--out", "there", "--json")
        loss = json.loads(Path("here/summary.json").read_text())["metrics"]["loss"]
        assert json.loads(done.out)["curve"][0]["loss"] == loss

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--checkpoint-every", "0"), "Invalid value for '--checkpoint-every'"),
            (("--threads", "-1"), "--threads must be at least 0, got -1"),
            (("--from", "nowhere"), "cannot read nowhere: No such file or directory"),
        ],
    )
    def test_wrong_options(self, troth: Troth, options: tuple[str, ...], message: str) -> None:
        done = troth(*SMALL, *options)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert done.err.startswith(f"troth: {message}")
        assert not Path("here").exists()

    def test_a_run_that_fails_leaves_the_results_of_the_one_before(
        self, troth: Troth, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert troth(*SMALL, "--checkpoint-every", "1").code == 0
        before = {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()}
        monkeypatch.setattr("troth.workshop.simulation.Started.__next__", _fails)
        assert troth(*SMALL).code == 2
        assert {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()} == before

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            ("{'error': torch.zeros(())}", "evaluate() gives 'error' as Tensor: make it a plain number, float(…)"),
            ("3", "evaluate() must return a dict of numbers by name"),
            ("{'step': 1.0}", "evaluate() must return a dict of numbers by name, and no name may be 'step'"),
        ],
    )
    def test_metrics_that_cannot_be_written_down(self, examples: Troth, returned: str, message: str) -> None:
        text = Path("my_task.py").read_text(encoding="utf-8")
        own = f"\n    def evaluate(self, model):\n        return {returned}\n"
        Path("my_task.py").write_text(text + own, encoding="utf-8")
        done = examples("simulate", "--task", "my_task.py:hidden=2", *FEW)
        assert done.code == 2
        assert done.err.startswith(f"troth: {message}")
        assert not Path("here").exists()

    def test_a_task_with_metrics_of_its_own(self, examples: Troth) -> None:
        own = "\n    def evaluate(self, model):\n        return {'error': -1.5}\n"
        text = Path("my_task.py").read_text(encoding="utf-8")
        Path("my_task.py").write_text(text + own, encoding="utf-8")
        done = examples("simulate", "--task", "my_task.py:hidden=2", *FEW)
        assert done.code == 0, done.err
        assert "-1.5" in done.out


def _fails(_: Started) -> NoReturn:
    raise TaskError("no more")


class TestLists:
    def test_a_package_and_how_to_use_ones_own(
        self, troth: Troth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        info = tmp_path / "site/offering-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[troth.attacks]\nloud = offering:Loud\nbroken = offering:Nothing\n[troth.rules]\nmid = offering:mid\n"
            "[troth.tasks]\ntiny = offering:tiny\n"
        )
        (tmp_path / "site/offering.py").write_text(
            "from troth.attacks import GradientAttack\nfrom troth.training.tasks.synthetic import Quadratic\n"
            "class Loud(GradientAttack):\n    '''shout'''\n"
            "def mid(vectors_PD):\n    '''the middle'''\n    return vectors_PD[0]\ntiny = Quadratic(dimension=9)\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        shown = {name: troth(name).out for name in ("attacks", "defences", "tasks")}
        assert "From installed packages:\n" in shown["attacks"]
        assert f"{'loud':<20}shout" in shown["attacks"]
        assert f"{'broken':<20}cannot be used: attack 'broken' of offering cannot be imported" in shown["attacks"]
        assert f"{'mid':<20}the middle" in shown["defences"]
        assert "tiny" in shown["tasks"]
        for name, kind in zip(shown, KINDS, strict=True):
            assert f"Your own: troth example {kind} > {FILES[kind]}" in shown[name]
        done = troth("simulate", "--task", "tiny", *FEW, "--attack", "loud", "--defence", "mid", "--json")
        assert json.loads(done.out)["parameters"] == 9
