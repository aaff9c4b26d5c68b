"""Tables of docs/results/paper.md."""

from pathlib import Path
from typing import Any

from benchmarks.paper_page import PAGE, RESULTS, SECTIONS, page
from tests.workshop.lab.made_results import made_run, write_results

FILE = 'name = "resnet18-cifar10"\n'
TEXT = """before
<!-- resnet18 attacks -->
<!-- end of resnet18 attacks -->
between
<!-- resnet18 defences -->old<!-- end of resnet18 defences -->
after
"""


def run(attack: str, defence: str, accuracy: float, **outcome: Any) -> dict[str, Any]:
    made = made_run(
        {"group": "7 of 16", "attack": attack, "defence": "troth, τ = 1", "seed": 0}, sweep="resnet18-cifar10"
    )
    made["metrics"] = {"accuracy": accuracy, "loss": 1.0}
    made["config"] |= {"defence": defence, "attack_every": 1}
    made["labels"]["defence"] = "troth, τ = 1" if defence == "troth" else defence
    made["key"] = f"{attack}{defence}"[:16]
    made["outcome"] |= outcome
    return made


def test_tables_come_from_the_results_and_prose_stays(tmp_path: Path) -> None:
    liars = [1, 2, 3, 4, 5, 6, 7]
    bans = [{"peer": peer, "step": 50 + 5 * peer, "reason": ""} for peer in liars]
    runs = [
        run("none", "troth", 0.9),
        run("sign-flip", "troth", 0.885, byzantine=liars, bans=bans),
        run("alie", "troth", 0.7, byzantine=liars, bans=[*bans[:2], {"peer": 9, "step": 60, "reason": ""}]),
    ]
    write_results(tmp_path / "resnet18-cifar10", runs, FILE)
    text = page(TEXT, tmp_path)
    assert text.startswith("before\n<!-- resnet18 attacks -->\n\n| attack |")
    assert "| sign-flip | troth, τ = 1 | 88.5 | -1.5 |" in text
    assert "| 7 of 7 | 35 steps | 0 |" in text
    assert "| 2 of 7 |  | 1 |" in text  # and the honest peer that was banned shows
    assert "old" not in text
    assert "between" in text
    assert text.endswith("after\n")
    assert page(text, tmp_path) == text


def test_defences_are_shown_from_the_first_lie_on_and_those_who_leave_are_no_liars(tmp_path: Path) -> None:
    runs = [
        run("none", "mean", 0.91),
        run("sign-flip", "krum", 0.3, byzantine=[1, 2]),
        run("leave", "troth", 0.8, byzantine=[1, 2], absent=[1, 2]),
    ]
    start = runs[1]["config"]["attack_start"]
    points = [(0, 0.1), (start, 0.55), (start + 10, 0.3)]
    runs[1]["curve"] = [{"step": step, "accuracy": accuracy, "loss": 1.0} for step, accuracy in points]
    write_results(tmp_path / "resnet18-cifar10", runs, FILE)
    names = ("resnet18 attacks", "resnet18 defences")
    text = page("".join(f"<!-- {name} --><!-- end of {name} -->" for name in names), tmp_path)
    assert "| mean | 91.0 |" in text
    assert "| krum |  | 55.0 → 30.0 |" in text
    assert "| left |  | 0 |" in text


def test_the_page_holds_what_the_committed_results_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in text and f"<!-- end of {name} -->" in text for name in SECTIONS)
    assert page(text, RESULTS) == text
