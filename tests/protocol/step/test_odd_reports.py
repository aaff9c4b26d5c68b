"""Commits, coins and reports in another form, or of absurd numbers."""

import dataclasses
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.protocol.small_runs import equals_trusted_server, kept_promises, records, run_on, wrap_channel
from tests.protocol.step.disturbed_step import DISTURBED_STEP, LYING, altering, calm_run
from troth.crypto import PeerId
from troth.protocol.core.run import LeftOutError
from troth.protocol.step.audits import sum_vanishes, suspicious_parts
from troth.protocol.wire.messages import Center, ChargeKind, Commit, Message, Report, ReportNumbers, Reveal
from troth.protocol.wire.primitives import ReportTable
from troth.workshop.simulation import ProtocolSimulation


def _shorter(message: Message) -> Message:
    return msgspec.structs.replace(message, numbers=message.numbers[:-8]) if isinstance(message, Report) else message


def _of_one_part_less(message: Message) -> Message:
    return (
        msgspec.structs.replace(message, numbers=message.numbers[: -8 * 18]) if isinstance(message, Report) else message
    )


def _no_report(message: Message) -> Message:
    return msgspec.structs.replace(message, numbers=b"") if isinstance(message, Report) else message


def _other_coin_a(message: Message) -> Message:
    return Reveal(bytes(32), message.held) if isinstance(message, Reveal) else message


def _no_root(message: Message) -> Message:
    return msgspec.structs.replace(message, root=None, length=None) if isinstance(message, Commit) else message


def _infinite(message: Message) -> Message:
    return _numbers(message, lambda numbers: np.full_like(numbers, np.nan))


def _numbers(message: Message, change: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Message:
    """A report of other numbers: for each part a length, a distance and 16 projections."""
    if not isinstance(message, Report) or not message.numbers:
        return message
    numbers = change(np.frombuffer(message.numbers, "<f8").reshape(-1, 18).copy())
    return msgspec.structs.replace(message, numbers=numbers.astype("<f8").tobytes())


def _longer(message: Message) -> Message:
    """A report of a gradient that is longer than it was committed to be."""
    return _numbers(message, lambda numbers: numbers * np.array([1 + 1e-8, *[1] * 17]))


def _of_no_length(message: Message) -> Message:
    return _numbers(message, lambda numbers: numbers * np.array([0, *[1] * 17]))


def _negative(message: Message) -> Message:
    """A report of lengths that add up, but are negative."""
    return _numbers(message, lambda numbers: numbers * np.array([-1, *[1] * 17]))


def _other_length(message: Message) -> Message:
    return msgspec.structs.replace(message, length=2.0**400) if isinstance(message, Commit) else message


def _length_of_nothing(message: Message) -> Message:
    return msgspec.structs.replace(message, length=0.0) if isinstance(message, Commit) else message


def _no_length(message: Message) -> Message:
    return msgspec.structs.replace(message, length=None) if isinstance(message, Commit) else message


@pytest.mark.long
@pytest.mark.parametrize(
    ("say", "attempts"),
    [
        (_no_root, 1),
        (_other_coin_a, 2),
        (_shorter, 2),
        (_of_one_part_less, 2),
        (_no_report, 2),
        (_infinite, 2),
        (_longer, 2),
        (_of_no_length, 2),
        (_negative, 2),
        (_other_length, 2),
        (_length_of_nothing, 2),
        (_no_length, 1),
    ],
)
def test_a_member_that_speaks_in_another_form_is_out_and_the_step_goes_on(
    say: Callable[[Message], Message], attempts: int
) -> None:
    """[N1, M3, V3] Also lengths that do not add up. Absent, not banned: it did not say what was asked for, no more is known."""
    simulation, contributors = calm_run()
    odd = contributors[2]
    wrap_channel(simulation, odd, altering(say))
    run_on(simulation)
    assert kept_promises(simulation) == {}
    record = records(simulation)[DISTURBED_STEP]
    assert record.absent == (odd,)
    assert set(record.contributors) == set(contributors) - {odd}
    assert record.parts == len(contributors)
    assert simulation.attempts == 7 + attempts - 1  # six steps, and the closing one
    assert isinstance(simulation.gone[odd], LeftOutError)
    assert len(records(simulation)) == 6
    assert equals_trusted_server(simulation)


@pytest.mark.long
@pytest.mark.parametrize("number", [1.7e308, -1.7e308, 1e200, 1e100, -1.0, 5e-324, 0.0])
def test_reports_of_any_finite_number_are_judged(number: float) -> None:
    """[M3, V1, V2] Two of seven say something absurd. A number that no honest one can be is no message; else both are banned."""
    simulation = ProtocolSimulation(dataclasses.replace(LYING, attack="silent-validation"))

    def say(message: Message) -> Message:
        return _numbers(message, lambda numbers: np.column_stack([numbers[:, :1], np.full((len(numbers), 17), number)]))

    for peer in simulation.peers:
        if peer not in simulation.honest:
            wrap_channel(simulation, peer, altering(say))
    run_on(simulation)
    banned = kept_promises(simulation)
    record = records(simulation)[DISTURBED_STEP]
    validators = set(record.members) - set(record.contributors) - record.leaving
    gone = set(simulation.byzantine) - {simulation.numbers[PeerId(peer)] for peer in validators}
    assert gone
    if 0 <= number <= 2.0**400:
        assert set(banned) == gone
        assert set(banned.values()) <= {ChargeKind.REPORT, ChargeKind.AGGREGATE}
    else:
        assert banned == {}
        assert set(simulation.absent) == gone


@pytest.mark.parametrize("number", [2.0**400, -(2.0**400)])
def test_sums_of_the_largest_numbers_there_may_be_do_not_vanish(number: float) -> None:
    """[V2, M3] And nobody falls over them."""
    said = [ReportNumbers(np.ones(2), np.ones(2), np.full((2, 16), number)) for _ in range(3)]
    center = Center(0, bytes(32), 1.0)
    assert not sum_vanishes(0, said, center, 1.0, 1)
    assert suspicious_parts(ReportTable(tuple(said)), [center, center], [1.0, 1.0], (0, 1, 2)) == {0, 1}


def _moved(message: Message) -> Message:
    """A report of the same length in all, but not in these parts."""
    return _numbers(message, lambda numbers: np.column_stack([np.roll(numbers[:, 0], 1), numbers[:, 1:]]))


def test_a_length_that_adds_up_and_is_wrong_convicts() -> None:
    """[V1, V3, T7] Owners compare it with the part they hold. Else liars could shift the median that V3 goes by."""
    simulation = ProtocolSimulation(dataclasses.replace(LYING, attack="silent-validation"))
    liars = [peer for peer in simulation.peers if peer not in simulation.honest]
    for peer in liars:
        wrap_channel(simulation, peer, altering(_moved))
    run_on(simulation)
    record = records(simulation)[DISTURBED_STEP]
    assert {simulation.numbers[PeerId(peer)] for peer in record.banned} == set(kept_promises(simulation))
    assert set(record.banned) == set(liars) - (set(record.members) - set(record.contributors) - record.leaving) != set()
    assert {j.kind for j in record.judgements if j.banned} <= {ChargeKind.REPORT, ChargeKind.AGGREGATE}
