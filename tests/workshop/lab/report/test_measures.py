"""The tables of a report, recomputed by hand on a few runs."""

import csv
import io
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from tests.workshop.lab.made_results import made_run, made_sweep, write_results
from troth.workshop.lab.figures import Band, Style, curve_of, curve_pictures, heat_maps, styles
from troth.workshop.lab.measures import ban_table, expected_table, final_table, lost_table, paired_table
from troth.workshop.lab.reading import read_results
from troth.workshop.lab.report import facts, trouble
from troth.workshop.lab.study import Study
from troth.workshop.lab.tables import MeanAndDeviation, ResultTable, number


def run(attack: str, defence: str, seed: int, accuracies: list[float | None], **outcome: Any) -> dict[str, Any]:
    """Evaluated at steps 0, 50, 100, 150; the attack begins at 50."""
    curve = [{"step": 50 * at, "accuracy": value} for at, value in enumerate(accuracies)]
    labels = {"attack": attack, "defence": defence, "seed": seed}
    facts = {"steps": 150, "bans": [], "byzantine": [] if attack == "none" else [1, 2], "assumed_byzantine": None}
    return made_run(labels, curve=curve, outcome={**facts, **outcome}) | {"metrics": {"accuracy": accuracies[-1]}}


def bans(*steps: int) -> list[dict[str, Any]]:
    return [{"peer": at + 1, "step": step, "reason": "x"} for at, step in enumerate(steps)]


RUNS = [
    run("none", "troth", 0, [0.4, 0.5, 0.8, 0.90]),  # ahead before the attack, which is no damage
    run("none", "troth", 1, [0.1, 0.5, 0.8, 0.94]),
    run("none", "mean", 0, [0.1, 0.5, 0.8, 0.92]),
    run("none", "mean", 1, [0.1, 0.5, 0.8, 0.94]),
    run("flip", "troth", 0, [0.1, 0.5, 0.7, 0.89], bans=bans(60, 90), gradients=5280),
    run("flip", "troth", 1, [0.1, 0.5, 0.6, 0.93], bans=bans(70), gradients=5280),
    run("flip", "mean", 0, [0.1, 0.5, 0.2, 0.12]),
    run("flip", "mean", 1, [0.1, 0.5, None, None], diverged_at=90),
]


def study(tmp_path: Path, runs: list[dict[str, Any]] | None = None, toml: str = "") -> Study:
    return Study(read_results(write_results(tmp_path / "made", runs or RUNS, f'name = "made"\n{toml}')))


def by_cell(table: ResultTable | None, labels: int = 2) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    assert table is not None
    return {tuple(row[:labels]): tuple(row[labels:]) for row in table.rows}


def near(mean: float, sd: float | None, n: int) -> Any:
    return _Near(MeanAndDeviation(mean, sd, n))


class _Near:
    def __init__(self, wanted: MeanAndDeviation) -> None:
        self.wanted = wanted

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, MeanAndDeviation)
        got = (other.mean, other.sd, other.n)
        return got == pytest.approx((self.wanted.mean, self.wanted.sd, self.wanted.n))


def test_final_metrics(tmp_path: Path) -> None:
    cells = by_cell(final_table(study(tmp_path)))
    assert cells["none", "troth"] == (near(92, 8**0.5, 2), ANY, 2, "")
    assert cells["flip", "mean"] == (near(12, None, 1), ANY, 2, "✕"), (
        "the seed that diverged has no number, and is counted"
    )


def test_what_was_lost_against_itself_and_against_the_plain_mean(tmp_path: Path) -> None:
    cells = by_cell(lost_table(study(tmp_path)))
    assert cells["flip", "troth"] == (near(1, 0, 2), near(2, 2**0.5, 2), 2, "")
    assert cells["flip", "mean"] == (near(80, None, 1), near(80, None, 1), 2, "✕")
    assert ("none", "troth") not in cells


def test_the_order_of_runs_does_not_matter(tmp_path: Path) -> None:
    cells = by_cell(lost_table(study(tmp_path, RUNS[::-1])))
    assert cells["flip", "troth"][0] == near(1, 0, 2)


def test_steps_to_ban(tmp_path: Path) -> None:
    cells = by_cell(ban_table(study(tmp_path)))
    assert list(cells) == [("flip", "troth")], "the mean bans nobody"
    assert cells["flip", "troth"] == (near(15, 50**0.5, 2), near(40, None, 1), "1 of 2", 75.0, 0)


def test_a_rule_that_removes_bans_too_and_honest_peers_are_counted(tmp_path: Path) -> None:
    removing = run("flip", "safeguard", 0, [0.1, 0.5, 0.7, 0.8], removed={"1": 55, "2": 60, "9": 61})
    cells = by_cell(ban_table(study(tmp_path, [*RUNS, removing])))
    assert cells["flip", "safeguard"] == (near(5, None, 1), near(10, None, 1), "1 of 1", 100.0, 1)


def ended(attack: str, defence: str, seed: int, accuracies: list[float | None]) -> dict[str, Any]:
    """A run that diverged at step 60, and was evaluated there for the last time."""
    line = run(attack, defence, seed, accuracies, steps=60, diverged_at=60, gradients=61 * 32)
    line["curve"][-1]["step"] = 60
    return line


def test_a_curve_does_not_rise_because_its_worst_seed_is_gone(tmp_path: Path) -> None:
    made = study(tmp_path, [*RUNS[:-1], ended("flip", "mean", 1, [0.1, 0.5, 0.1])])
    runs = [one for one in made.runs if one.labels["defence"] == "mean" and not one.calm]
    band = curve_of(made.metric, Style("#000000", ()), runs)
    assert list(band.points[-1]) == pytest.approx([150, 11, 10, 12])


def test_published_figures_beside_ours(tmp_path: Path) -> None:
    toml = (
        '[[expected]]\nattack = "flip"\ndefence = "troth"\naccuracy = 88.5\nsource = "A"\n'
        '[[expected]]\nattack = "flip"\ndefence = "mean"\naccuracy = 0.5\n'
        '[[expected]]\nattack = "none"\ndefence = "troth"\naccuracy = 86.0\nlast = 2\n'
        '[[expected]]\nattack = "zero"\naccuracy = 50\n'
    )
    table = expected_table(study(tmp_path, toml=toml))
    assert table is not None
    near_by, far, last, none = table.rows
    assert (near_by[2], near_by[3]) == (88.5, near(91, 8**0.5, 2))
    assert [near_by[4], far[4]] == pytest.approx([2.5, -38])
    assert (near_by[5], far[5]) == (True, False)
    assert last[3] == near(86, 2**0.5, 2)
    assert none[3:7] == (MeanAndDeviation(None, None, 0), None, None, 0)


def test_two_defences_seed_by_seed(tmp_path: Path) -> None:
    cells = by_cell(paired_table(study(tmp_path, toml='paired = ["troth", "mean"]')), labels=3)
    # Differences −2 and 0: mean −1, standard error 1, and t with one degree of freedom is 12.7062.
    calm, lied = (("none", "troth", "accuracy, points"), ("flip", "troth", "accuracy, points"))
    assert cells[calm] == (*map(pytest.approx, (-1, 1, -13.7062, 11.7062)), True, 2)
    assert cells[lied] == (pytest.approx(77), None, None, None, None, 1), "one seed says nothing about noise"
    assert paired_table(study(tmp_path)) is None


def test_values_of_any_axis_against_the_last_in_all_metrics_of_their_task(tmp_path: Path) -> None:
    """Tasks may differ in their metrics, and values may still be missing."""
    runs = [
        made_run({"task": task, "code": code, "seed": seed}) | {"metrics": dict.fromkeys(names, value)}
        for task, names in (("digits", ("accuracy", "loss")), ("text", ("loss",)))
        for code, value in (("float32", 0.5), ("int8", 0.75))
        for seed in (0, 1)
    ]
    cells = by_cell(paired_table(study(tmp_path, runs, 'paired = ["int4", "int8", "float32"]')), labels=3)
    assert {key: found[0] for key, found in cells.items()} == {
        ("digits", "int8", "accuracy, points"): 25,
        ("digits", "int8", "loss"): 0.25,
        ("text", "int8", "loss"): 0.25,
    }


def test_the_heat_map_is_in_order_of_means_and_marked(tmp_path: Path) -> None:
    outside = [run(a, "krum", 0, [0.1, 0.5, 0.8, v], assumed_byzantine=1) for a, v in (("none", 0.9), ("flip", 0.5))]
    lost, final = heat_maps(study(tmp_path, [*RUNS, *outside]))
    assert lost.columns == ("troth", "krum", "mean")
    assert lost.means == pytest.approx([1, 40, 80])
    assert [cell.marks for cell in lost.cells[0]] == ["", "†", "✕"]
    assert final.rows == ("flip", "no attack")
    assert final.cells[1][1].marks == "", "nobody lied there"
    assert "| 40.0 † |" in lost.table().markdown()


def test_a_cell_without_a_number_counts_as_the_worst(tmp_path: Path) -> None:
    ruined = [run(a, "sum", 0, [0.1, 0.5, v, v]) for a, v in (("none", 0.9), ("flip", None))]
    lost, _ = heat_maps(study(tmp_path, [*RUNS, *ruined]))
    assert lost.columns[-1] == "sum"
    assert lost.cells[0][-1].value is None
    assert lost.cells[0][-1].heat == 1.0


def test_a_defence_that_was_not_run_without_attack_has_lost_nothing_that_is_known(tmp_path: Path) -> None:
    lost, final = heat_maps(study(tmp_path, [*RUNS, run("flip", "krum", 0, [0.1, 0.5, 0.5, 0.5])]))
    assert set(lost.columns) == {"troth", "mean"}
    assert "krum" in final.columns


def test_a_map_of_one_cell_is_none(tmp_path: Path) -> None:
    nine = made_run({**RUNS[0]["labels"], "peers": 9}, curve=RUNS[0]["curve"], outcome=RUNS[0]["outcome"])
    runs = [made_run({**line["labels"], "peers": 16}, curve=line["curve"], outcome=line["outcome"]) for line in RUNS]
    names = [found.name for found in heat_maps(study(tmp_path, [*runs, nine]))]
    assert names == ["heatmap-lost-peers-16", "heatmap-final-peers-16"]


def test_an_axis_of_numbers_keeps_its_order(tmp_path: Path) -> None:
    runs = made_sweep({"attack": ["none", "alie"], "tau": [0.1, 1.0, 10.0]}, [0])
    lost, _ = heat_maps(study(tmp_path, runs))
    assert lost.columns == ("0.1", "1", "10")


def test_what_all_runs_share_is_said_once(tmp_path: Path) -> None:
    said = dict(facts(study(tmp_path, toml="seeds = [0, 1]")))
    assert said["runs"] == "8, seeds 0, 1"
    assert (said["task"], said["peers"], said["liars"]) == ("digits", "16", "2")
    assert (said["attack"], said["defence"]) == ("none, flip", "troth, mean")
    assert said["again"] == "troth lab run sweep.toml; troth lab report results/made"
    assert "1 runs diverged (✕)" in trouble(study(tmp_path / "again"))


def test_runs_that_left_shards_aside_are_marked(tmp_path: Path) -> None:
    lines = [dict(line) for line in RUNS]
    lines[0] = made_run(
        lines[0]["labels"], curve=lines[0]["curve"], outcome={**lines[0]["outcome"], "unused_shards": True}
    )
    said = study(tmp_path, lines)
    assert trouble(said)[0] == "1 runs of Troth without the task's shards (○): an easier problem"
    cells = by_cell(final_table(said))
    assert [key for key, cell in cells.items() if "○" in cell[-1]] == [("none", "troth")]


def test_a_number_is_shown_in_one_way_however_it_was_computed() -> None:
    shown = {number(value, 1) for value in (83.75, 100 * 0.8375, 83.75 - 1e-13, 83.75 + 1e-13)}
    assert shown == {"83.8"}
    assert (number(-0.04, 1), number(-1.25, 1), number(1e30, 0)) == ("0.0", "−1.2", f"{1e30:.0f}")


@pytest.mark.long
def test_troth_under_attack_is_shown_beside_troth_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[Any]] = []
    monkeypatch.setattr(Band, "draw", lambda band, _axes, **_: drawn.append([point[1] for point in band.points]))
    shown, alone = (curve_pictures(study(tmp_path / name, runs))[0] for name, runs in (("a", RUNS), ("b", RUNS[4:])))
    assert shown
    assert alone
    without = [25, 50, 80, 92]
    assert sum(line == pytest.approx(without) for line in drawn) == 2, (
        "in its own panel and in the other; where there is such a run"
    )


def test_every_line_of_troth_is_thick_and_no_two_are_alike() -> None:
    found = styles(["troth, τ = 1", "troth, τ = 10", "mean", "trothless"])
    ours = [found["troth, τ = 1"], found["troth, τ = 10"]]
    assert ours[0].colour == ours[1].colour
    assert ours[0].dashes != ours[1].dashes
    assert {style.width for style in ours} == {2.6}
    assert found["trothless"].width < 2


@pytest.mark.parametrize(
    ("outcome", "says"),
    [({"stalled": "too few"}, "1 runs stalled"), ({"agreement": False}, "1 runs in which honest peers did not agree")],
)
def test_what_must_not_be_is_said(tmp_path: Path, outcome: dict[str, Any], says: str) -> None:
    assert says in " ".join(trouble(study(tmp_path, [*RUNS[:4], run("flip", "troth", 0, [0.1, 0.9], **outcome)])))


def test_csv_has_plain_numbers_and_no_formulas(tmp_path: Path) -> None:
    runs = [run(attack, '=HYPERLINK("x")', seed, [0.1, 0.9]) for attack in ("none", "flip") for seed in (0, 1)]
    rows = list(csv.reader(io.StringIO(final_table(study(tmp_path, [*RUNS, *runs])).csv())))
    assert rows[0] == ["attack", "defence", "accuracy, %", "accuracy, %, sd", "seconds", "seconds, sd", "n", "marks"]
    assert rows[1][:3] == ["none", "troth", "92"]
    assert {row[1] for row in rows[1:]} == {"troth", "mean", '\'=HYPERLINK("x")'}
