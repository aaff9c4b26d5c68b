"""`troth chaos` from the command line."""

import pytest

from tests.cli.conftest import Troth


def test_one_world_is_told(troth: Troth) -> None:
    done = troth("chaos", "--seed", "1", "--steps", "2", "--peers", "4")
    assert done.code == 0
    assert done.out.startswith("seed 1: 4 peers, 2 steps")
    assert "step 1: " in done.out
    assert done.out.endswith("no promise was broken\n")


def test_a_trace_says_who_sent_what_when(troth: Troth) -> None:
    done = troth("chaos", "--seed", "1", "--steps", "1", "--peers", "4", "--trace")
    lines = [line for line in done.out.splitlines() if "→" in line]
    assert len(lines) > 50
    assert "Value" in lines[0]
    assert "step 0 attempt 0 commit" in lines[0]
    times = [float(line.split()[0]) for line in lines]
    assert times == sorted(times)


def test_many_worlds_and_what_was_tried(troth: Troth) -> None:
    done = troth("chaos", "--seeds", "0..3", "--steps", "2", "--peers", "4..5")
    assert done.code == 0
    assert "no promise was broken in 3 worlds" in done.out
    assert "3  worlds" in done.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--seeds", "3"), "--seeds is A..B"),
        (("--seeds", "9..3"), "--seeds is A..B"),
        (("--peers", "0"), "--peers must be from 1 to 64"),
        (("--steps", "0"), "--steps must be at least 1"),
        (("--trace",), "--trace needs --seed"),
    ],
)
def test_what_cannot_be_drawn(troth: Troth, arguments: tuple[str, ...], says: str) -> None:
    done = troth("chaos", *arguments)
    assert done.code == 2
    assert says in done.err
