"""A run that goes on while somebody downloads: whoever could be a member comes in, however late its content (SPEC J1, J2)."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest

from tests.protocol.recovery.test_strangers import FOUNDERS, PROBATION, joined
from tests.protocol.scripted_world import WorldRun, plan, run_world
from troth.crypto import PeerId
from troth.protocol.broadcast import serving
from troth.protocol.recovery import models
from troth.protocol.wire.frames import ChunkShown, Packet
from troth.workshop.chaos import plan as faults
from troth.workshop.chaos import world
from troth.workshop.chaos.check_history import agreement
from troth.workshop.chaos.plan import Plan

STEPS = 30


@contextmanager
def _slow_link(number: int, seconds_per_byte: float) -> Iterator[list[float]]:
    """Let chunks reach this peer at a rate; whatever else comes is quick. Gives the times at which they came."""
    usual, came, busy = faults.deliveries, list[float](), [0.0]

    def deliveries(network: Any, seed: Any, numbers: dict[PeerId, int], late: Any) -> Any:
        deliver = usual(network, seed, numbers, late)

        def slowed(sender: PeerId, to: PeerId, packet: Packet, now: float) -> Sequence[float]:
            delays = deliver(sender, to, packet, now)
            if numbers.get(to) != number or not isinstance(packet.frame, ChunkShown) or not len(packet.frame.blob):
                return delays
            busy[0] = max(busy[0], now) + len(packet.frame.blob) * seconds_per_byte
            came.append(busy[0])
            return [busy[0] - now + delay for delay in delays]

        return slowed

    with patch.object(world, "deliveries", deliveries):
        yield came


@cache
def _step_and_size(content_every: int) -> tuple[float, int]:
    """Seconds of a step, and numbers of the model."""
    quick = run_world(dataclasses.replace(_plan(content_every), steps=3, strangers={}))
    return sorted(quick.seconds)[1], quick.world.run.parameters.size


def _plan(content_every: int) -> Plan:
    # Large enough that the bound on steps (U7) is a small part of the state, as it is of a real one.
    made = dataclasses.replace(
        plan(liars=(), steps=STEPS), task="quadratic:dimension=480", byzantine=1, probation=PROBATION
    )
    return dataclasses.replace(made, strangers={FOUNDERS: (0.5, "honest")}, content_every=content_every)


def _world(steps_per_aggregate: float, content_every: int) -> tuple[WorldRun, int]:
    """A stranger whose link takes so many steps' time for an aggregate, in a run whose members keep no more than those of a
    large model do; and how many chunks came to it."""
    step, size = _step_and_size(content_every)
    with (
        patch.object(models, "_KEPT_BYTES", content_every * 4 * size),
        patch.object(serving, "_STATES_BYTES", 0),
        _slow_link(FOUNDERS, steps_per_aggregate * step / (4 * size)) as came,
    ):
        return run_world(_plan(content_every)), len(came)


@pytest.mark.long
@pytest.mark.parametrize(("steps_per_aggregate", "content_every"), [(0.5, 1), (0.8, 1), (0.5, 6)])
def test_whoever_has_the_link_of_a_member_comes_in(steps_per_aggregate: float, content_every: int) -> None:
    """[J1, J2] Though its state is several steps old when it is here."""
    seen, _ = _world(steps_per_aggregate, content_every)
    assert list(joined(seen)) == [FOUNDERS]
    assert agreement(seen.world) == []


def test_whoever_cannot_keep_up_with_the_aggregates_alone_stays_outside() -> None:
    """[J2] It could be no member either; the others are not held up, and all make their steps."""
    seen, came = _world(3.0, 1)
    assert joined(seen) == {}
    assert came > 10, "it tries"
    assert len(seen.records) == STEPS
