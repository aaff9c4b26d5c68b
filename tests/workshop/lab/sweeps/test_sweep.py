"""A sweep's file: what it describes, and the mistakes that it may hold."""

import os
from pathlib import Path

import pytest

from tests.workshop.lab.sweeps.tiny import TINY, tiny
from troth.training import TaskError, make_task
from troth.training.tasks import data_folder
from troth.workshop.lab.files import SweepError
from troth.workshop.lab.run import perform
from troth.workshop.lab.sweep_file import parse_sweep, read_sweep


def test_axes_are_crossed_with_the_seeds(tmp_path: Path) -> None:
    cells = tiny(tmp_path).plan().cells
    assert len(cells) == 2 * 3 * 2
    assert cells[0].labels == {"attack": "none", "defence": "troth", "seed": 0}
    assert cells[-1].labels == {"attack": "sign-flip", "defence": "krum of one", "seed": 1}
    assert cells[-1].config["defence"] == "krum"


def test_a_run_that_several_cells_share_is_made_once(tmp_path: Path) -> None:
    """Where nobody lies, it does not matter when they would have."""
    text = TINY.replace('when = "middle"', "") + '\nwhen = ["early", "late"]\n'
    plan = tiny(tmp_path, text).plan()
    assert len(plan.cells) == 24
    assert len(plan.jobs()) == 18
    calm = [cell for cell in plan.cells if cell.labels["attack"] == "none"]
    assert len({cell.job.key for cell in calm}) == len(calm) // 2


def test_when_is_a_share_of_the_steps(tmp_path: Path) -> None:
    text = (
        TINY.replace('when = "middle"', "").replace("steps = 4", "steps = 60")
        + '\nwhen = ["early", "middle", "late"]\n'
    )
    starts = {
        c.labels["when"]: c.config["attack_start"] for c in tiny(tmp_path, text).plan().cells if c.config["byzantine"]
    }
    assert starts == {"early": 10, "middle": 20, "late": 40}


def test_equal_configurations_have_equal_keys_and_others_do_not(tmp_path: Path) -> None:
    one, other = tiny(tmp_path).plan(), tiny(tmp_path, TINY.replace("steps = 4", "steps = 5")).plan()
    assert [c.job.key for c in one.cells] == [c.job.key for c in tiny(tmp_path).plan().cells]
    assert not {c.job.key for c in one.cells} & {c.job.key for c in other.cells}


GROUPS = """
name = "two"
[fixed]
task = "quadratic:dimension=40"
peers = 4
steps = 4
[[groups]]
name = "a"
axes = {rate = [0.2]}
[[groups]]
name = "b"
fixed = {defence = "mean"}
axes = {rate = [0.1, 1]}
"""


def test_groups_have_values_of_their_own(tmp_path: Path) -> None:
    cells = parse_sweep(GROUPS, tmp_path).plan().cells
    assert [tuple(cell.labels.values()) for cell in cells] == [("a", 0.2, 0), ("b", 0.1, 0), ("b", 1, 0)]
    assert [cell.config["defence"] for cell in cells] == ["troth", "mean", "mean"]
    assert cells[-1].config["rate"] == 1.0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('name = "b"', 'name = "a"'), "two `groups` have the same name"),
        (("axes = {rate = [0.2]}", "axes = {tau = [0.2]}"), "all `groups` have the same axes"),
        (("[fixed]", "[axes]\ntau = [1]\n[fixed]"), "either above all, or in each"),
    ],
)
def test_mistakes_with_groups(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    with pytest.raises(SweepError, match=says):
        parse_sweep(GROUPS.replace(*change), tmp_path)


def test_only_some_of_the_cells(tmp_path: Path) -> None:
    plan = tiny(tmp_path).plan()
    assert len(plan.only({"defence": ["troth", "mean"], "seed": ["1"]}).cells) == 4
    with pytest.raises(SweepError, match="defence=kurm is no label of this sweep: there are krum of one, mean, troth"):
        plan.only({"defence": ["kurm"]})
    with pytest.raises(SweepError, match="there is no such axis"):
        plan.only({"colour": ["red"]})


def test_a_dataset_is_named_when_it_runs_and_shows_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom pathlib import Path\n"
        "from troth.training.tasks.synthetic import Quadratic\n"
        "@dataclass(frozen=True)\nclass Own(Quadratic):\n    data: Path = Path()\n"
    )
    sweep = tiny(tmp_path, TINY.replace("quadratic:dimension=40", "task.py:Own:dimension=40,data={data}"))
    with pytest.raises(SweepError, match="name its folder, `data`"):
        sweep.plan()
    one, other = sweep.plan(data=tmp_path / "here"), sweep.plan(data=tmp_path / "there")
    assert [cell.job.key for cell in one.cells] == [cell.job.key for cell in other.cells]
    assert str(tmp_path / "here") not in str([cell.config for cell in one.cells])
    here, there = (next(cell.job for cell in plan.cells if cell.labels["defence"] == "troth") for plan in (one, other))
    assert perform(here).found == perform(there).found  # a run's name and its draws do not follow from the place either
    assert "error" not in perform(here).found


def test_a_spec_with_data_needs_the_folder_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TROTH_DATA", raising=False)
    with pytest.raises(TaskError, match="TROTH_DATA in the environment is to name"):
        make_task("resnet18:data={data}")
    with data_folder("/one"):
        with data_folder("/other"), data_folder(None):
            assert make_task("resnet18:data={data}/x").data == Path("/other/x")  # type: ignore[attr-defined]
        assert make_task("resnet18:data={data}/x").data == Path("/one/x")  # type: ignore[attr-defined]
    assert "TROTH_DATA" not in os.environ


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("peers = 4", "piers = 4"), r"\[fixed\]: a scenario has no option `piers`: did you mean `peers`\?"),
        (("peers = 4", 'peers = "4"'), r"`peers` takes a whole number, got '4'"),
        (("peers = 4", "peers = true"), r"`peers` takes a whole number, got True"),
        (("peers = 4", "seed = 4"), r"write `seeds ="),
        (('"middle"', '"noon"'), r"`when` is one of early, middle, late, got 'noon'"),
        (("seeds = [0, 1]", "seeds = [1, 1]"), r"different whole numbers"),
        (("seeds = [0, 1]", "seeds = []"), r"different whole numbers"),
        (("seeds = [0, 1]", 'seeds = "all"'), r"Expected `array`"),
        (('name = "tiny"', 'name = "../x"'), r"`name` is of letters"),
        (('name = "tiny"', 'nome = "tiny"'), r"missing required field `name`|unknown field `nome`"),
        (('attack = ["none", "sign-flip"]', "attack = []"), r"axis `attack` is empty"),
        (('attack = ["none", "sign-flip"]', 'attack = ["none", "none"]'), r"has a label twice"),
        (('attack = ["none", "sign-flip"]', 'attack = [{attack = "alie"}]'), r"nor a table with a `label`"),
        (('attack = ["none", "sign-flip"]', "tau = [1.0, nan]"), r"axis `tau`: nan is neither a value"),
        (('attack = ["none", "sign-flip"]', "seed = [1, 2]"), r"cannot be called `seed`"),
        (("[axes]", "[axes"), r"Expected"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(TINY.replace(*change))
    with pytest.raises(SweepError, match=says) as error:
        read_sweep(path).plan()
    assert "\n" not in str(error.value)


def test_an_impossible_run_is_named_or_left_out(tmp_path: Path) -> None:
    """An attack on the protocol has nothing to attack where there is a trusted server."""
    text = TINY.replace('"sign-flip"', '"vanish"')
    with pytest.raises(
        SweepError, match="attack vanish, defence mean, seed 0 cannot be run: `attack` vanish is an attack on"
    ):
        tiny(tmp_path, text).plan()
    plan = tiny(tmp_path, "skip_impossible = true\n" + text).plan()
    assert (len(plan.cells), len(plan.skipped)) == (8, 4)
    assert {labels["attack"] for labels, _ in plan.skipped} == {"vanish"}


@pytest.mark.parametrize("wrong", ["gone.py", "sign-flop"])
def test_what_is_wrong_in_every_run_is_never_left_out(tmp_path: Path, wrong: str) -> None:
    text = "skip_impossible = true\n" + TINY.replace('"sign-flip"', f'"{wrong}"')
    with pytest.raises(SweepError, match=f"cannot be run: .*{wrong}") as told:
        tiny(tmp_path, text).plan()
    assert "skip_impossible" not in str(told.value)


def test_too_many_runs(tmp_path: Path) -> None:
    text = TINY + f"\nrate = {[k / 1000 for k in range(1, 1001)]}\nvalidators = {list(range(20))}\n"
    text = text.replace(", 0.", ",\n0.")  # no line is longer than 4,096 bytes
    with pytest.raises(SweepError, match="240,000 runs"):
        tiny(tmp_path, text)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r"cannot read .*: No such file"):
        read_sweep(tmp_path / "no.toml")


@pytest.mark.parametrize(
    ("hostile", "why"),
    [
        (b"a = " + b"[\n" * 5000, "nested too deeply: no sweep is"),
        (b"a" + b".a" * 1000 + b" = 1", "line 1: a key has more than 16 dots"),
    ],
)
def test_a_hostile_file_is_a_mistake_that_is_named(tmp_path: Path, hostile: bytes, why: str) -> None:
    """They ended in a traceback, or after minutes."""
    path = tmp_path / "hostile.toml"
    path.write_bytes(hostile)
    with pytest.raises(SweepError, match=why):
        read_sweep(path)
