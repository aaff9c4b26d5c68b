"""`make fuzz` finds what it is for: a decoder that crashes, one that hoards memory, one that believes what it must not."""

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import chunks, main
from tests.fuzz.harness import MOST_GROWTH, Tally, hostile_input, peak_bytes, run_inputs
from tests.fuzz.sessions import Fed
from tests.fuzz.targets import BY_NAME, TARGETS

PLAIN = BY_NAME["crypto.valid_peer"]


def test_equal_seeds_give_equal_inputs() -> None:
    """Else no failure could be had again."""
    for target in TARGETS:
        first, again, other = (hostile_input(target, seed, 3) for seed in (1, 1, 2))
        assert first == again
        assert first != other or len(first) < 100


def test_every_decoder_gets_its_share() -> None:
    given = {target.name: 0 for target in TARGETS}
    for chunk in chunks(100_000):
        given[chunk.target] += chunk.draws * BY_NAME[chunk.target].inputs
    assert 100_000 <= sum(given.values()) < 101_000
    total = sum(target.share for target in TARGETS)
    assert all(given[target.name] >= 100_000 * target.share // total for target in TARGETS)


def test_a_good_decoder_passes() -> None:
    tally = run_inputs(PLAIN, 0, 0, 200, peak_bytes())
    assert (tally.inputs, tally.crashes, tally.failures) == (200, 0, [])
    assert 0 < tally.accepted < 200


def test_a_crash_is_found_and_can_be_had_again() -> None:
    """A decoder that cannot stand a certain byte."""

    def careless(raw: bytes) -> Fed:
        return Fed(1, 100 // (raw[0] - 7) if raw else 0)

    target = dataclasses.replace(PLAIN, feed=careless)
    tally = run_inputs(target, 5, 0, 3000, peak_bytes())
    assert tally.crashes > 0
    failure = tally.failures[0]
    assert "ZeroDivisionError" in failure.what
    assert failure.raw == hostile_input(target, 5, failure.number)
    assert failure.raw[0] == 7
    assert failure.raw.hex() in failure.text()
    assert f"--seed 5 --replay {target.name} {failure.number}" in failure.text()


def test_a_hoard_is_found() -> None:
    """One input that takes more memory than all inputs together may; it is told once."""
    hoard: list[bytes] = []

    def hoarding(raw: bytes) -> Fed:
        if len(raw) == 32 and not hoard:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            left = peak_bytes() - pages * os.sysconf("SC_PAGE_SIZE")  # tests before this one may have had more
            hoard.append(b"x" * (left + 2 * MOST_GROWTH))
        return Fed(1, 0)

    tally = run_inputs(dataclasses.replace(PLAIN, feed=hoarding), 0, 0, 50, peak_bytes())
    assert [failure.what.partition(":")[0] for failure in tally.failures] == ["memory"]
    assert (tally.inputs, tally.crashes) == (50, 1)


def test_the_same_failure_is_not_told_a_thousand_times() -> None:
    def broken(raw: bytes) -> Fed:
        raise KeyError(raw)

    total = Tally()
    for _ in range(2):
        total.add(run_inputs(dataclasses.replace(PLAIN, feed=broken), 0, 0, 100, peak_bytes()))
    assert (total.crashes, total.refused, len(total.failures)) == (200, 0, 3)


@pytest.mark.parametrize("how", [("--replay", PLAIN.name, "7"), ("--replay-hex", PLAIN.name, "00ff")])
def test_one_input_again(
    how: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz", *how])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    assert "of 1" in capsys.readouterr().out
