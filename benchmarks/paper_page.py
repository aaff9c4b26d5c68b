"""Tables of docs/results/paper.md, from the results that lie beside it: `make paper-page` writes them.

The prose of the page stays. Between `<!-- NAME -->` and `<!-- end of NAME -->` everything is written anew.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.marked import filled, table
from troth.errors import OperatorError
from troth.workshop.lab.reading import FinishedRun, FinishedSweep, read_results
from troth.workshop.simulation import TROTH

RESULTS = Path(__file__).parent.parent / "docs/results"
PAGE = RESULTS / "paper.md"
MAIN = "7 of 16"  # the group of the paper's figure
_GONE = ("liars banned", "all gone after", "others")  # titles of `_gone` …
_AFTER = ("accuracy, %", "against no attack", "lowest", *_GONE)  # … and of `_after_attack`


def resnet_attacks(sweep: FinishedSweep) -> str:
    """Troth under every attack, with each radius: what it ends with, how deep it fell, and when the liars were gone."""
    nobody = {run.labels["defence"]: run for run in _of(sweep, MAIN) if run.calm}
    rows = []
    for run in _of(sweep, MAIN):
        if run.config["defence"] == TROTH:
            rows.append((_attack(run), run.labels["defence"], *_after_attack(run, nobody.get(run.labels["defence"]))))
    return table(("attack", "Troth", *_AFTER), rows)


def resnet_defences(sweep: FinishedSweep) -> str:
    """Final accuracy of every defence under every attack that it was run with, after the one before the attack."""
    runs = _of(sweep, MAIN)
    attacks = list(dict.fromkeys(map(_attack, runs)))
    found: dict[str, dict[str, str]] = {}
    for run in runs:
        found.setdefault(str(run.labels["defence"]), {})[_attack(run)] = _before_and_after(run)
    rows = [(defence, *(cells.get(attack, "") for attack in attacks)) for defence, cells in found.items()]
    return table(("defence", *attacks), rows)


def albert(sweep: FinishedSweep) -> str:
    """Loss on held-out text: before the attack, at its worst, at the end."""
    rows = []
    for run in sweep.runs:
        start = run.attack_start
        losses = [(step, point["loss"]) for step, point in run.curve]
        before = None if run.calm else _before(run, "loss")
        later = [loss for step, loss in losses if step > start and loss is not None]
        worst = None if run.calm or run.outcome.diverged_at is not None else max(later, default=None)
        gone = _gone(run) if run.config["defence"] == TROTH else ("", "", "")
        rows.append((_attack(run), run.labels["defence"], _loss(before), _loss(worst), _loss_at_end(run), *gone))
    return table(("attack", "defence", "loss before", "highest", "at the end", *_GONE), rows)


SECTIONS: dict[str, tuple[str, Callable[[FinishedSweep], str]]] = {
    "resnet18 attacks": ("resnet18-cifar10", resnet_attacks),
    "resnet18 defences": ("resnet18-cifar10", resnet_defences),
    "albert": ("albert-large", albert),
}


def _of(sweep: FinishedSweep, group: str) -> list[FinishedRun]:
    return [run for run in sweep.runs if run.labels["group"] == group]


def _attack(run: FinishedRun) -> str:
    return "no attack" if run.calm else str(run.labels["attack"])


def _after_attack(run: FinishedRun, nobody: FinishedRun | None) -> tuple[str, ...]:
    ended = _accuracy(run)
    against = "" if run.calm or nobody is None else f"{ended - _accuracy(nobody):+.1f}"
    low = min(100 * (point["accuracy"] or 0) for step, point in run.curve if step > run.attack_start)
    return (_ended(run), against, "" if run.calm else f"{low:.1f}", *_gone(run))


def _gone(run: FinishedRun) -> tuple[str, str, str]:
    """Liars banned, steps until the last was, and how many honest peers were banned."""
    liars, out = len(run.outcome.liars), len(run.liars_out)
    if liars and not run.out and run.outcome.liars <= run.outcome.absent:
        return ("left", "", str(run.honest_out))
    lasted = f"{_lasted(run)} steps" if liars and out == liars else ""
    return (f"{out} of {liars}" if liars else "", lasted, str(run.honest_out))


def _lasted(run: FinishedRun) -> int:
    """Steps from the first lie to the ban of the last liar."""
    return run.liars_out[-1] - run.attack_start


def _accuracy(run: FinishedRun) -> float:
    return 100 * (run.metrics["accuracy"] or 0)


def _ended(run: FinishedRun) -> str:
    return f"{_accuracy(run):.1f}" + (
        f" (diverged at step {run.outcome.diverged_at:,})" if run.outcome.diverged_at is not None else ""
    )


def _before_and_after(run: FinishedRun) -> str:
    before = None if run.calm else _before(run, "accuracy")
    return _ended(run) if before is None else f"{100 * before:.1f} → {_ended(run)}"


def _before(run: FinishedRun, metric: str) -> float | None:
    """What was measured last before the first lie."""
    return next((point[metric] for step, point in reversed(run.curve) if step <= run.attack_start), None)


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _loss_at_end(run: FinishedRun) -> str:
    if run.outcome.diverged_at is not None:
        return f"diverged at step {run.outcome.diverged_at:,}"
    return _loss(run.metrics["loss"])


def page(text: str, results: Path) -> str:
    """The page with its tables written anew; a sweep that has not been run yet leaves its section as it is."""
    for name, (sweep, tables) in SECTIONS.items():
        folder = results / sweep
        if f"<!-- {name} -->" in text and (folder / "results.jsonl").exists():
            text = filled(text, name, tables(read_results(folder)))
    return text


def main() -> None:
    try:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
    except OperatorError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"{PAGE.name} has its tables")


if __name__ == "__main__":
    main()
