"""The report as files: self-contained, safe whatever the labels are, the same bytes for the same results."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.workshop.lab.made_results import made_run, made_sweep, write_results
from troth.errors import OperatorError
from troth.workshop.lab.report import Chapter, SweepReport, page, write_report

EVIL = "</td><script>alert(1)</script><!-- --> $\\frac{$ \u202e\x1b[31m | `x` \ud800 &lt; _a"
AXES = {"attack": ["none", "alie", "zero"], "defence": ["troth", "mean", "krum"]}
HEAD = 'name = "made"\ntitle = "A sweep"\ncompare = "attack × defence"\n'


class Tags(HTMLParser):
    """Names and attributes of all elements, checked to be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SweepReport:
    return write_report(write_results(tmp_path_factory.mktemp("results") / "made", made_sweep(AXES, [0, 1]), HEAD))


def text_of(report: SweepReport) -> str:
    return report.page.read_text(encoding="utf-8")


def test_the_files_are_there(made: SweepReport) -> None:
    folder = made.page.parent
    assert {path.relative_to(folder).as_posix() for path in made.figures} == {
        f"figures/{name}.png" for name in ("curves", "heatmap-lost", "heatmap-final")
    }
    tables = ("heatmap-lost", "heatmap-final", "lost", "bans", "final")
    assert {path.name for path in made.tables} == {f"{name}.{kind}" for name in tables for kind in ("csv", "md")}
    assert all(path.is_file() for path in (*made.figures, *made.tables))
    [sweep] = made.sweeps
    assert (sweep.name, len(sweep.runs), sweep.failed, sweep.unfinished) == ("made", 18, (), False)
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in made.figures)


def test_the_page_asks_nothing_of_another_machine(made: SweepReport) -> None:
    page = text_of(made)
    assert "http:" not in page
    assert "https:" not in page
    assert "default-src 'none'" in page
    found = Tags(page)
    assert found.tags.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "form"})
    links = [
        value for name, value in found.attributes if name in ("href", "xlink:href", "src", "srcset", "data", "action")
    ]
    assert len(links) == 3
    assert all(link.startswith("data:image/png;base64,") for link in links)
    assert "url(" not in page


def test_pictures_have_words_and_signs_are_explained(made: SweepReport) -> None:
    found = Tags(text_of(made))
    assert all(value for name, value in found.attributes if name == "alt")
    assert "† more liars than" in text_of(made)
    assert re.search(r"<td class=n>−?[0-9.]+ †</td>|<td>−?[0-9.]+ †</td>", text_of(made))


def test_the_same_results_give_the_same_bytes(made: SweepReport, tmp_path: Path) -> None:
    again = write_report(made.page.parent, tmp_path / "elsewhere")
    for one, other in zip(
        (made.page, *made.figures, *made.tables), (again.page, *again.figures, *again.tables), strict=True
    ):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_what_people_wrote_is_escaped() -> None:
    made = page("<t>", [Chapter("a < b\x1b\u202e", [("<i>", "&")], ["<b>"], [])])
    assert "<title>&lt;t&gt;</title>" in made
    assert "<h1>a &lt; b??</h1>" in made
    assert "<th scope=row>&lt;i&gt;</th><td>&amp;</td>" in made
    assert "<li>&lt;b&gt;</li>" in made


def test_labels_from_a_hostile_file_are_text(tmp_path: Path) -> None:
    labels = [
        {"attack": attack, "defence": defence, EVIL: EVIL, "seed": 0}
        for attack in ("none", EVIL)
        for defence in ("mean", EVIL)
    ]
    runs = [made_run(one) for one in labels]
    runs[0]["labels"][EVIL] = "other"
    failed = {"key": "f", "labels": labels[0] | {"seed": 1}, "config": {}, "error": EVIL}
    runs[-1]["version"] = EVIL
    toml = 'name = "../<b>$x"\ntitle = "<script>alert(2)</script>"\n'
    report = write_report(write_results(tmp_path / "made", [*runs, failed], toml))
    page = text_of(report)
    assert "script" not in Tags(page).tags
    assert "&lt;script&gt;alert(1)" in page
    assert "&lt;script&gt;alert(2)" in page
    assert not {"\x1b", "\u202e"} & set(page)
    for path in report.tables:
        assert path.resolve().is_relative_to(tmp_path / "made")
        if path.suffix == ".md":
            assert "<" not in path.read_text()
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in path.read_text().splitlines()}
            assert len(widths) == 1, "no label opens a cell"


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"defence": ["troth", "mean"]},
        {"attack": ["none", "alie"]},
        {"tau": [0.01, 0.1, 1.0]},
        {"flag": [True, False]},
    ],
    ids=["no axes", "defence", "attack", "tau", "flag"],
)
def test_axes_may_be_missing_and_there_may_be_one_seed(tmp_path: Path, axes: dict[str, Any]) -> None:
    report = write_report(write_results(tmp_path / "made", made_sweep(axes, [0]), times=False))
    names = {path.stem for path in report.figures}
    assert "curves" in names
    assert ("final-over-tau" in names) == ("tau" in axes)
    assert "±" not in (tmp_path / "made/tables/final.md").read_text()


@pytest.mark.long
def test_three_axes_give_maps_and_curves_for_each_value_of_the_third(tmp_path: Path) -> None:
    axes = {"attack": ["none", "alie"], "defence": ["troth", "mean"], "schedule": ["early", "late"]}
    report = write_report(write_results(tmp_path / "made", made_sweep(axes, [0])))
    names = {path.stem for path in report.figures}
    assert {
        "curves-schedule-early",
        "curves-schedule-late",
        "heatmap-lost-schedule-early",
        "heatmap-final-schedule-late",
    } <= names


def test_runs_without_numbers(tmp_path: Path) -> None:
    runs = made_sweep({"attack": ["none", "alie"], "defence": ["mean"]}, [0])
    for run in runs:
        run["metrics"] = {"accuracy": None, "loss": None}
        run["curve"] = [{"step": 0, "accuracy": None, "loss": None}]
        run["outcome"]["diverged_at"] = 0
    report = write_report(write_results(tmp_path / "made", runs))
    assert "2 runs ended without a number" in report.summary
    assert "2 runs diverged" in report.summary


def test_a_loss_is_reported_where_there_is_no_accuracy(tmp_path: Path) -> None:
    runs = made_sweep({"attack": ["none", "alie"], "defence": ["troth", "mean"]}, [0, 1])
    for run in runs:
        del run["metrics"]["accuracy"]
    report = write_report(write_results(tmp_path / "made", runs))
    assert "Final loss" in text_of(report)


def test_an_unfinished_sweep_says_so(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "made", made_sweep({"attack": ["none"]}, [0, 1]))
    results = folder / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-50])
    report = write_report(folder)
    assert report.sweeps[0].unfinished
    assert "the sweep is unfinished" in text_of(report)


@pytest.mark.parametrize(("skip", "unfinished"), [("", True), ("skip_impossible = true\n", False)])
def test_a_sweep_that_was_stopped_in_good_order_is_unfinished(tmp_path: Path, skip: str, unfinished: bool) -> None:
    toml = f'name = "made"\nseeds = [0, 1]\n{skip}[axes]\nattack = ["none", "alie"]\n'
    runs = made_sweep({"attack": ["none", "alie"]}, [0, 1])
    report = write_report(write_results(tmp_path / "made", runs[:-1], toml))
    assert report.sweeps[0].unfinished == unfinished
    assert "1 of 4 cells have no result" in text_of(report)
    assert "no result" not in text_of(write_report(write_results(tmp_path / "whole", runs, toml)))


@pytest.mark.parametrize(
    ("name", "command"),
    [("matrix", "troth lab run matrix;"), ("made", "troth lab run sweep.toml;")],
)
def test_the_page_names_the_command_that_made_it(tmp_path: Path, name: str, command: str) -> None:
    report = write_report(write_results(tmp_path / "made", made_sweep({"attack": ["none"]}, [0]), f'name = "{name}"\n'))
    assert command in text_of(report)


def test_a_sweep_without_results_yet(tmp_path: Path) -> None:
    report = write_report(write_results(tmp_path / "made", []))
    assert "no run has ended yet" in text_of(report)


def test_several_sweeps_share_a_page_and_their_files_do_not_collide(tmp_path: Path) -> None:
    for folder, name in (("a", "tau"), ("b", "tau"), ("c", "../x")):
        write_results(tmp_path / folder, made_sweep({"defence": ["troth", "mean"]}, [0]), f'name = "{name}"\n')
    report = write_report(tmp_path, tmp_path / "out")
    assert [sweep.name for sweep in report.sweeps] == ["tau", "tau", "../x"]
    assert {path.name for path in report.figures if path.suffix == ".png"} == {
        "tau-1-curves.png",
        "tau-2-curves.png",
        "x-curves.png",
    }
    assert text_of(report).count("<h1") == 3


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "made", made_sweep({}, [0]))
    (tmp_path / "file").touch()
    with pytest.raises(OperatorError, match="cannot write to"):
        write_report(folder, tmp_path / "file")
