"""What a step costs a member: the formulas, beside what a run measured."""

from dataclasses import replace

import pytest

from tests.network.manifest.plans import PLAN
from troth.clip.blocks import Code
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
    assert [row[4:20].strip() for row in rows] == ["sent, received", "time", "a gradient", "memory", "disk"]
    assert rows[0][20:].startswith("67 MB = D·(4·(n − m − 1) + 4·(n − 1))/(n − m) of gradients and aggregates")
    assert "26.7 s at 20, 5.3 s at 100, 533 ms at 1,000 Mbit/s" in rows[1]
    alone = replace(cost(1000), members=1, auditors=0)
    assert len(alone.sentences()) == 3, "nobody to send to"


def test_local_steps_share_the_bytes_of_a_step() -> None:
    once, walking = cost(10_000_000), replace(cost(10_000_000), local_steps=8)
    assert walking.sentences()[0].startswith("A quiet step, of 8 local ones, with n = 4 members")
    assert "520 MB = 4·D·(3s + 7)" in walking.sentences()[4]
    assert walking.sent == once.sent
    assert walking.per_parameter == once.per_parameter / 8


def test_a_code_has_fewer_bytes() -> None:
    plain = cost(10_000_000)
    coded = replace(plain, code=Code.known["int8"])
    assert coded.sent == pytest.approx((2 * 1 + 3 * 2) / (2 * 4 + 3 * 4) * plain.sent, rel=0.01)
    assert coded.sentences()[1][20:].startswith("27 MB = D·(1·(n − m − 1) + 2·(n − 1))/(n − m)")
    assert plain.disk - coded.disk == pytest.approx(21 * 2 * 10_000_000, rel=0.01), "aggregates"
    assert coded.seconds(20) == pytest.approx(0.4 * plain.seconds(20), rel=0.01)


def test_options_that_halve_the_bytes_are_named_where_they_are_allowed() -> None:
    plain = cost(10_000_000)
    assert plain.cheaper() == {
        "--code int8": replace(plain, code=Code.known["int8"]).per_parameter,
        "--local-steps 2": plain.per_parameter / 2,
    }
    assert plain.sentences()[3][20:] == (
        "6.7 bytes for each parameter, each way; 2.7 with --code int8 or 3.3 with --local-steps 2"
    )
    assert replace(plain, exact=False).cheaper() == {}, "rounding and walks need audits that compare bits"
    assert replace(plain, code=Code.known["int8"], local_steps=16).cheaper().keys() == {"--local-steps 32"}
    assert replace(plain, local_steps=600).cheaper().keys() == {"--code int8"}, "no more than a thousand"
    assert cost(300).cheaper().keys() == {"--local-steps 2"}, "announcements are most of it"
