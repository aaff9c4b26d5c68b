"""Tables of attacks and defences that `make lab-pages` and `make attack-pages` write into pages with prose around them."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import attack_pages
from benchmarks.attack_pages import OF_THE_LAB, SEEDS, TRIED, Result
from benchmarks.attack_studies import radius_table
from benchmarks.lab_pages import PAGE, PagesError, read_matrix, write_page
from tests.workshop.lab.made_results import made_run, write_results
from troth.workshop.attacks import ATTACKS
from troth.workshop.lab.sweep_file import read_sweep

DOCS = Path(__file__).parents[2] / "docs"
RECIPE = DOCS.parent / "src/troth/workshop/lab/recipes/matrix.toml"
MACHINE = "a machine, 2 cores, PyTorch 9"
FILE = """
name = "matrix"
seeds = [0, 1]
[fixed]
task = "digits"
peers = 16
byzantine = 7
steps = 300
when = "early"
[axes]
attack = ["none", "alie", "mimic", {label = "team", attack = "sign-flip + alie"}]
defence = ["troth", "mean", "bulyan", {label = "nnm + median", defence = "nnm:rule=median"}]
"""
SPECS = {"team": "sign-flip + alie", "nnm + median": "nnm:rule=median"}
LOST = {"troth": 0.01, "mean": 0.5, "bulyan": 0.25, "nnm + median": 0.125}


def made(attack: str, defence: str, seed: int) -> dict[str, Any]:
    """A run with round numbers: 0.9 without attack, and a little less than that with a higher seed."""
    accuracy = 0.9 - 0.02 * seed - (0.0 if attack == "none" else LOST[defence] + 0.02 * (attack == "mimic"))
    labels = {"attack": attack, "defence": defence, "seed": seed}
    config = {name: SPECS.get(str(labels[name]), labels[name]) for name in ("attack", "defence")}
    return made_run(labels, sweep="matrix", metrics={"accuracy": accuracy}, config=config)


def made_matrix(folder: Path, *, drop: int = 0, file: str = FILE) -> Path:
    attacks = ("none", "alie", "mimic", "team")
    runs = [made(attack, defence, seed) for attack in attacks for defence in LOST for seed in (0, 1)]
    write_results(folder, runs[drop:], file)
    times = [{"key": run["key"], "seconds": 1.0, "machine": MACHINE} for run in runs]
    (folder / "times.jsonl").write_text("".join(json.dumps(line) + "\n" for line in times))
    return folder


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The page with the markers, and tables of an earlier sweep between them."""
    path = tmp_path / "README.md"
    path.write_text("# Results\n\n<!-- ranking -->\n\nold\n\n<!-- end of ranking -->\n\n## More\n\nprose\n")
    return path


def tables(text: str) -> list[list[list[str]]]:
    """Cells of the tables of a text, without their heads."""
    found = [part.partition("\n\n")[0] for part in text.split("\n| ---")[1:]]
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()[1:]] for part in found]


def test_the_ranking(page: Path, tmp_path: Path) -> None:
    write_page(read_matrix(made_matrix(tmp_path / "matrix")), page)
    text = page.read_text()
    assert text.startswith(
        "# Results\n\n<!-- ranking -->\n\n16 peers learn digits, 7 of them lie from step 50 of 300 on."
    )
    assert f"`troth lab run matrix`, then `python -m benchmarks.lab_pages results/matrix`,\non {MACHINE}." in text
    assert "\n† more liars than the defence's guarantee covers" in text
    assert '“team”: `attack = "sign-flip + alie"`. “nnm + median”: `defence = "nnm:rule=median"`.' in text
    assert text.endswith("<!-- end of ranking -->\n\n## More\n\nprose\n")
    assert tables(text)[0] == [
        ["1", "[troth](../defences/troth.md)", "1.7", "3.0, [mimic](../attacks/mimic.md)", "89.0 ± 1.4"],
        ["2", "[nnm + median](../defences/nnm.md)", "13.2", "14.5, [mimic](../attacks/mimic.md)", "89.0 ± 1.4"],
        ["3", "[bulyan](../defences/bulyan.md) †", "25.7", "27.0, [mimic](../attacks/mimic.md)", "89.0 ± 1.4"],
        ["4", "[mean](../defences/mean.md)", "50.7", "52.0, [mimic](../attacks/mimic.md)", "89.0 ± 1.4"],
    ]


def test_twice_is_the_same(page: Path, tmp_path: Path) -> None:
    matrix = read_matrix(made_matrix(tmp_path / "matrix"))
    write_page(matrix, page)
    once = page.read_text()
    write_page(matrix, page)
    assert page.read_text() == once


def test_our_page_has_room_for_the_tables_and_our_attacks_have_pages() -> None:
    assert set(OF_THE_LAB) < set(ATTACKS)
    [group] = read_sweep(RECIPE).groups
    alone = {spec for spec in group.axes["attack"] if isinstance(spec, str)} - {"none"}
    for name in {*alone, *ATTACKS}:
        assert (DOCS / f"attacks/{name}.md").read_text().startswith(f"# {name}\n"), name
    text = PAGE.read_text()
    assert text.count("<!-- ranking -->") == text.count("<!-- end of ranking -->") == 1


def test_the_table_of_attacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written anew below its heading, seed by seed where seeds differ; everything else stays."""
    before = (DOCS / "attacks/README.md").read_text()
    (tmp_path / "README.md").write_text(before)
    monkeypatch.setattr(attack_pages, "DOCS", tmp_path)
    metrics = [
        {"accuracy": 0.5, "backdoor": 0.25},
        {"accuracy": 0.6, "backdoor": 0.25},
        {"accuracy": 0.7, "backdoor": 0.25},
    ]
    runs = [Result(metrics[seed], [seed + 3], honest_banned=0, absent=[], agreement=True) for seed in SEEDS]
    attack_pages.write_all({(name, seed): runs[seed] for name in (None, *TRIED) for seed in SEEDS})
    after = (tmp_path / "README.md").read_text()
    heading = "## What each of them did\n"
    assert after.partition(heading)[0] == before.partition(heading)[0]
    assert after.partition("## More lies")[2] == before.partition("## More lies")[2]
    assert "\n| [grind](grind.md) | 1 | 3, 4, 5 | 0 | 50.0, 60.0, 70.0 | +0.0 |\n" in after
    assert "\n- backdoor: `--attack backdoor --metric backdoor`. backdoor: 25.0 %, without attack 25.0 %.\n" in after
    assert before.count("\n| [") == after.count("\n| ["), "every row of ours is one that would be written"


def test_a_broken_promise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("## What each of them did\n")
    monkeypatch.setattr(attack_pages, "DOCS", tmp_path)
    run = Result({"accuracy": 0.5}, [], honest_banned=1, absent=[], agreement=True)
    with pytest.raises(AssertionError, match="a promise was broken"):
        attack_pages.write_all({(name, seed): run for name in (None, *TRIED) for seed in SEEDS})


# Refusals


@pytest.mark.parametrize("drop", [1, 31])
def test_an_unfinished_sweep_is_refused(tmp_path: Path, drop: int) -> None:
    with pytest.raises(PagesError, match=f"unfinished: of 32 runs {drop} have no result"):
        read_matrix(made_matrix(tmp_path / "matrix", drop=drop))


def test_a_failed_run_is_refused(tmp_path: Path) -> None:
    folder = made_matrix(tmp_path / "matrix")
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    failed = {name: lines[5][name] for name in ("key", "labels", "config")} | {"error": "out of memory"}
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines[:5], failed, *lines[6:]]))
    with pytest.raises(PagesError, match="of 32 runs 1 have no result"):
        read_matrix(folder)


def test_another_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PagesError, match="holds the sweep 'tau'"):
        read_matrix(made_matrix(tmp_path / "matrix", file=FILE.replace('"matrix"', '"tau"')))


def test_results_without_a_machine_are_refused(tmp_path: Path) -> None:
    folder = made_matrix(tmp_path / "matrix")
    (folder / "times.jsonl").unlink()
    with pytest.raises(PagesError, match="on which machine"):
        read_matrix(folder)


# Studies


def test_a_radius_that_hardly_moves_has_no_row() -> None:
    ratios = {
        "inflate": [1.0, 1.49, 0.9, 1.0],
        "label-flip": [1.04, 1.0],
        "leave": [1.0, 2.5, 1.0, 1.0],
        "rop": [1.05] * 4,
    }
    assert [row[:3] for row in tables(radius_table(ratios).join(("\n", "\n")))[0]] == [
        ["leave", "1.00", "2.50"],
        ["rop", "1.05", "1.05"],
        ["the other 2, at most", "1.04", "1.49"],
    ]
