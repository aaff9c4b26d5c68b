"""Kinds of worlds that a seed can draw. Each draw keeps its order of random numbers: equal seeds, equal plans."""

from collections.abc import Callable

from troth.simulation.chaos.draws.beyond import draw_beyond
from troth.simulation.chaos.draws.classic import draw_plan
from troth.simulation.chaos.draws.door import draw_door
from troth.simulation.chaos.draws.wide import draw_wide
from troth.simulation.chaos.plan import Plan

Draw = Callable[..., Plan]

DRAWS: dict[str, Draw] = {"classic": draw_plan, "wide": draw_wide, "beyond": draw_beyond, "door": draw_door}

__all__ = ["DRAWS", "Draw", "draw_beyond", "draw_door", "draw_plan", "draw_wide"]
