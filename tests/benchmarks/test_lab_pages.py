"""Pages of attacks and defences: the lab's tables and those of `make attack-pages` leave each other alone."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import attack_pages
from benchmarks.attack_pages import OF_THE_LAB, SEEDS, TRIED, Result
from benchmarks.lab_pages import PLACEHOLDER, PagesError, read_matrix, write_pages
from tests.lab.made_results import made_run, write_results
from troth.attacks import ATTACKS
from troth.lab.sweeps.file import read_sweep
from troth.simulation import ALSO

DOCS = Path(__file__).parents[2] / "docs"
RECIPE = DOCS.parent / "src/troth/lab/recipes/matrix.toml"
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
def docs(tmp_path: Path) -> Path:
    """Our pages before the lab has measured anything."""
    for name in ("attacks", "defences"):
        shutil.copytree(DOCS / name, tmp_path / "docs" / name)
    for name in ("attacks/mimic", "attacks/rop", "defences/bulyan", "defences/centered-clip"):
        path = tmp_path / f"docs/{name}.md"
        path.write_text(f"{path.read_text().partition('## Measured')[0]}## Measured\n\n{PLACEHOLDER}\n")
    alie = tmp_path / "docs/attacks/alie.md"
    alie.write_text(alie.read_text().partition("\n## Against")[0])
    results = tmp_path / "docs/results/README.md"
    results.parent.mkdir()
    results.write_text("# Results\n\n<!-- ranking -->\n\n## More\n\nprose\n")
    return tmp_path / "docs"


def contents(docs: Path) -> dict[str, str]:
    return {str(path.relative_to(docs)): path.read_text() for path in docs.glob("*/*.md")}


def rows(text: str) -> list[list[str]]:
    """Cells of the last table of a text, without its head."""
    table = text.rpartition("\n| ---")[2]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "]


def test_an_attacks_page(docs: Path, tmp_path: Path) -> None:
    before = contents(docs)["attacks/mimic.md"]
    write_pages(read_matrix(made_matrix(tmp_path / "matrix")), docs)
    text = contents(docs)["attacks/mimic.md"]
    assert text.startswith(before.partition(PLACEHOLDER)[0]), "the prose stays"
    assert PLACEHOLDER not in text
    assert rows(text) == [
        ["[troth](../defences/troth.md)", "86.0 ± 1.4", "3.0 ± 0.0", "7.0"],
        ["[nnm + median](../defences/nnm.md)", "74.5 ± 1.4", "14.5 ± 0.0", "–"],
        ["[bulyan](../defences/bulyan.md) †", "62.0 ± 1.4", "27.0 ± 0.0", "–"],
        ["[mean](../defences/mean.md)", "37.0 ± 1.4", "52.0 ± 0.0", "–"],
    ]
    assert "16 peers learn digits, 7 of them lie from step 50 of 300 on." in text
    assert f"`troth lab run matrix`, then `python -m benchmarks.lab_pages results/matrix`,\non {MACHINE}." in text
    assert "\n† more liars than the defence's guarantee covers" in text


def test_a_defences_page(docs: Path, tmp_path: Path) -> None:
    write_pages(read_matrix(made_matrix(tmp_path / "matrix")), docs)
    text = contents(docs)["defences/nnm.md"]
    assert rows(text) == [
        ["no attack", "89.0 ± 1.4", "–"],
        ["[mimic](../attacks/mimic.md)", "74.5 ± 1.4", "14.5 ± 0.0"],
        ["[alie](../attacks/alie.md)", "76.5 ± 1.4", "12.5 ± 0.0"],
        ["team", "76.5 ± 1.4", "12.5 ± 0.0"],
    ]
    assert 'As “nnm + median”: `defence = "nnm:rule=median"`.' in text
    assert "“team” is `sign-flip + alie`." in text


def test_what_is_not_in_the_sweep_says_so(docs: Path, tmp_path: Path) -> None:
    before = contents(docs)
    write_pages(read_matrix(made_matrix(tmp_path / "matrix")), docs)
    after = contents(docs)
    for page in ("attacks/rop.md", "defences/centered-clip.md"):
        assert after[page] == before[page].replace(PLACEHOLDER, "It is not in the sweep `matrix`.")
    assert after["attacks/grind.md"] == before["attacks/grind.md"]
    assert after["attacks/README.md"] == before["attacks/README.md"]


def test_the_ranking(docs: Path, tmp_path: Path) -> None:
    write_pages(read_matrix(made_matrix(tmp_path / "matrix")), docs)
    found = contents(docs)
    results = found["results/README.md"]
    assert results.endswith("<!-- end of the ranking -->\n\n## More\n\nprose\n")
    assert rows(results) == [
        ["1", "[troth](../defences/troth.md)", "1.7", "3.0, [mimic](../attacks/mimic.md)", "89.0 ± 1.4"],
        ["2", "[nnm + median](../defences/nnm.md)", "13.2", "14.5, [mimic](../attacks/mimic.md)", "89.0 ± 1.4"],
        ["3", "[bulyan](../defences/bulyan.md) †", "25.7", "27.0, [mimic](../attacks/mimic.md)", "89.0 ± 1.4"],
        ["4", "[mean](../defences/mean.md)", "50.7", "52.0, [mimic](../attacks/mimic.md)", "89.0 ± 1.4"],
    ]
    assert rows(found["defences/README.md"]) == rows(results)


def test_twice_is_the_same(docs: Path, tmp_path: Path) -> None:
    matrix = read_matrix(made_matrix(tmp_path / "matrix"))
    changed = {path.name for path in write_pages(matrix, docs)}
    assert {"mimic.md", "alie.md", "bulyan.md", "README.md"} <= changed
    once = contents(docs)
    assert write_pages(matrix, docs) == []
    assert contents(docs) == once


def test_attack_pages_and_lab_pages_leave_each_other_alone(
    docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either order, and again."""
    before = contents(docs)
    matrix = read_matrix(made_matrix(tmp_path / "matrix"))
    write_pages(matrix, docs)
    lab = contents(docs)
    protocol = before["attacks/alie.md"].partition("## Measured\n")[2]
    assert protocol in lab["attacks/alie.md"], "the table of the protocol is kept"
    ours = lab["attacks/alie.md"].partition("## Against every defence\n")[2]
    assert len(rows(ours)) == 4
    monkeypatch.setattr(attack_pages, "DOCS", docs / "attacks")
    run = Result({"accuracy": 0.5, "backdoor": 0.25}, liars_banned=[3], honest_banned=0, absent=[], agreement=True)
    attack_pages.write_all({(name, seed): run for name in (None, *TRIED) for seed in SEEDS})
    both = contents(docs)
    assert protocol not in both["attacks/alie.md"]
    assert both["attacks/alie.md"].endswith(f"| 50.0% | 50.0% |\n\n## Against every defence\n{ours}")
    assert both["attacks/backdoor.md"].endswith("| 50.0% | 50.0% | 25.0% | 25.0% |\n")
    assert both["attacks/mimic.md"] == lab["attacks/mimic.md"]
    new = re.compile(r"## More lies about gradients\n.*", re.DOTALL)
    assert new.findall(both["attacks/README.md"]) == new.findall(before["attacks/README.md"])
    assert write_pages(matrix, docs) == []


def test_attack_pages_of_some_attacks_leave_the_others_and_the_index(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(docs)
    monkeypatch.setattr(attack_pages, "DOCS", docs / "attacks")
    run = Result({"accuracy": 0.5}, liars_banned=[3], honest_banned=0, absent=[], agreement=True)
    attack_pages.write_all({(name, seed): run for name in (None, "grind") for seed in SEEDS}, ("grind",))
    after = contents(docs)
    assert {page for page in after if after[page] != before[page]} == {"attacks/grind.md"}


def test_every_attack_of_the_recipe_has_a_page_with_room() -> None:
    """Each of the lab's own, and nothing that `make attack-pages` would write over."""
    assert set(OF_THE_LAB) < set(ATTACKS)
    [group] = read_sweep(RECIPE).groups
    alone = {spec for spec in group.axes["attack"] if isinstance(spec, str)} - {"none"}
    assert not [spec for spec in alone if ALSO in spec or f"{spec}.md" not in {p.name for p in DOCS.glob("attacks/*")}]
    for name in ATTACKS:
        assert "\n## Measured\n" in (DOCS / f"attacks/{name}.md").read_text(), name


# Refusals


@pytest.mark.parametrize("drop", [1, 31])
def test_an_unfinished_sweep_is_refused(docs: Path, tmp_path: Path, drop: int) -> None:
    with pytest.raises(PagesError, match=f"unfinished: of 32 runs {drop} have no result"):
        write_pages(read_matrix(made_matrix(tmp_path / "matrix", drop=drop)), docs)


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
