"""The table of codes and local steps, from runs that nobody made."""

from pathlib import Path

from benchmarks.codes_page import PAGE, codes_table
from tests.workshop.lab.made_results import made_run, write_results
from troth.workshop.lab.reading import read_results


def test_ways_are_compared_seed_by_seed_in_points_and_nats(tmp_path: Path) -> None:
    metrics = {
        ("digits", "float32", 0): {"accuracy": 0.5, "loss": 1.0},
        ("digits", "float32", 1): {"accuracy": 0.75, "loss": 2.0},
        ("digits", "int8", 0): {"accuracy": 0.5, "loss": 1.25},
        ("digits", "int8", 1): {"accuracy": 0.73, "loss": 2.25},
        ("text", "float32", 0): {"loss": 1.0},
        ("text", "float32", 1): {"loss": 2.0},
        ("text", "float32", 2): {"loss": 3.0},
        ("text", "int8", 0): {"loss": 0.5},
        ("text", "int8", 1): {"loss": 2.0},
    }
    runs = [made_run({"task": t, "way": w, "seed": s}) | {"metrics": found} for (t, w, s), found in metrics.items()]
    sweep = read_results(write_results(tmp_path / "codes", runs, 'name = "codes"\npaired = ["int8", "float32"]\n'))
    assert codes_table(sweep).splitlines()[2:] == [
        "| float32 | 62.50 %, 1.5000 (2 seeds) | 2.0000 (3 seeds) |",
        "| int8 | −1.00 ± 1.00, +0.2500 ± 0.0000 | −0.2500 ± 0.2500 (2 seeds) |",
    ]


def test_the_page_has_a_place_for_the_table() -> None:
    assert PAGE.read_text().count("<!-- codes -->") == 1
