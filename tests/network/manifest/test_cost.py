"""What a step costs a member: the formulas, beside what a run measured."""

from dataclasses import replace

import pytest

from tests.network.manifest.plans import PLAN
from troth.network.manifest.cost import StepCost, in_bytes

MEASURED = (
    26_284_965 / 651
)  # bytes that one of four members of `digits` sent in a step, contributing in three steps of four


def cost(size: int, optimizer: str = "sgd:momentum=0.9") -> StepCost:
    limits = replace(PLAN.timeouts, memory=1 << 39)
    parameters = replace(PLAN.parameters, size=size)
    return StepCost.of(replace(PLAN, optimizer=optimizer, parameters=parameters, timeouts=limits))


def test_the_counts_are_what_a_run_measured() -> None:
    digits = cost(4_810)
    assert (digits.members, digits.auditors) == (4, 1)
    assert digits.sent * 3 / 4 + digits.announced == pytest.approx(MEASURED, rel=0.05)
    assert digits.seconds(20) == pytest.approx(10 * digits.seconds(200))


def test_memory_and_disk_are_those_of_the_page() -> None:
    """benchmarks/results-memory.md, whose optimizer is SGD with momentum; an optimizer's single numbers are no vectors."""
    large = cost(100_000_000)
    assert (in_bytes(large.memory), in_bytes(large.disk)) == ("3.2 GB", "20 GB")
    assert [cost(9, name).vectors for name in ("sgd:momentum=0.9", "adamw", "lamb")] == [2, 3, 3]


def test_every_line_has_a_formula_and_a_figure() -> None:
    first, *rows = cost(10_000_000).sentences()
    assert first.startswith("A quiet step, with n = 4 members of whom m = 1 audit, D = 10,000,000 parameters")
    assert [row.split("  ")[2].strip() for row in rows] == ["sent, received", "time", "memory", "disk"]
    assert rows[0].split("   ")[-1].strip().startswith("sent, received  67 MB of gradients = 4·D·(2n − m − 2)/(n − m)")
    assert "26.7 s at 20, 5.3 s at 100, 533 ms at 1,000 Mbit/s" in rows[1]
    walking = replace(cost(10_000_000), local_steps=8)
    assert walking.sentences()[0].startswith("A quiet step, of 8 local ones, with n = 4 members")
    assert "520 MB = 4·D·(3s + 7)" in walking.sentences()[3]
    alone = replace(cost(1000), members=1, auditors=0)
    assert len(alone.sentences()) == 3, "nobody to send to"
