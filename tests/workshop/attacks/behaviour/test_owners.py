"""An aggregate that is off by as much as is let pass, and no more."""

import pytest
import torch

from troth.clip.centered_clip import judge_center
from troth.crypto import stream
from troth.workshop.attacks import make_attack
from troth.workshop.attacks.roles import WrongAggregate, at_the_border
from troth.workshop.chaos.checkers import CHECKERS
from troth.workshop.chaos.judge import play
from troth.workshop.chaos.plan import Network, Plan

# P contributors, D coordinates


@pytest.mark.parametrize("share", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("tau", [0.1, 10.0])
def test_off_by_so_large_a_share_of_the_tolerance(share: float, tau: float) -> None:
    """[V2] Whatever is clipped: float32 is fine enough to hit the line by a tenth."""
    rows_PD = torch.from_numpy(stream(0, "rows").normal(35).reshape(7, 5)).float() + 3.0
    away_D = at_the_border(rows_PD, tau, share)
    residual, tolerance = judge_center(rows_PD, away_D, tau=tau)
    assert residual / tolerance == pytest.approx(share, abs=0.1)


def test_honest_peers_fall_on_the_same_side() -> None:
    """[V2, T6] Step after step just before or behind the line: nothing local enters, so nobody is left alone."""
    attack = make_attack("wrong-aggregate:border=true")
    assert isinstance(attack, WrongAggregate)
    nothing: frozenset[str] = frozenset()
    attacks = {0: "wrong-aggregate:border=true", 3: "wrong-aggregate:border=true"}
    intensity = {0: (0.0, 0), 3: (0.0, 0)}
    world = play(Plan(1, 7, 4, {0: nothing, 3: nothing}, {}, attacks, intensity, {}, Network(latency=0.4)))
    assert [what for check in CHECKERS.values() for what in check(world)] == []
    assert len(world.records) == 4
    assert any(record.judgements for record in world.records)
