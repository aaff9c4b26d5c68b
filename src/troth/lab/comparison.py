"""Comparisons: the same run with and without liars, under several defences."""

from dataclasses import replace

from troth.simulation import Scenario


def contenders(scenario: Scenario, defences: tuple[str, ...]) -> dict[str, Scenario]:
    """Scenarios by label: no liars with the plain mean, then the same liars against each defence."""
    calm = {"no attack, plain mean": replace(scenario, byzantine=0, defence="mean")}
    return calm | {f"under attack, {name}": replace(scenario, defence=name) for name in defences}
