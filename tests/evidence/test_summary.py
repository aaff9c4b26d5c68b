"""The summary of a run."""

import dataclasses
import json
from typing import Any

import pytest

from troth.evidence.file_format import RunSummary, slug
from troth.workshop.simulation import Scenario

SUMMARY = RunSummary(
    version="1.2.3",
    peers=4,
    byzantine=[1],
    steps=10,
    attack="sign-flip",
    defence="mean",
    metrics={"accuracy": 0.5, "loss": 1.25},
    curve=[{"step": 0, "accuracy": 0.1, "loss": 2.5}, {"step": 10, "accuracy": 0.5, "loss": 1.25}],
    details={"parameters": 7, "diverged_at": None},
    config={"seed": 3},
)


class TestToJson:
    def test_round_trip(self) -> None:
        text = SUMMARY.to_json()
        assert text.endswith("}\n")
        assert json.loads(text) == {
            "version": "1.2.3",
            "peers": 4,
            "byzantine": [1],
            "steps": 10,
            "attack": "sign-flip",
            "defence": "mean",
            "metrics": {"accuracy": 0.5, "loss": 1.25},
            "curve": [{"step": 0, "accuracy": 0.1, "loss": 2.5}, {"step": 10, "accuracy": 0.5, "loss": 1.25}],
            "parameters": 7,
            "diverged_at": None,
            "config": {"seed": 3},
        }

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_numbers_that_are_not_finite_become_null(self, value: float) -> None:
        ruined = dataclasses.replace(
            SUMMARY, metrics={"loss": value}, curve=[{"step": 1, "loss": value}], details={"deep": [[value]]}
        )
        read = json.loads(ruined.to_json(), parse_constant=_no_constants)
        assert read["metrics"] == {"loss": None}
        assert read["curve"] == [{"step": 1, "loss": None}]
        assert read["deep"] == [[None]]


def _no_constants(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


class TestSlug:
    def config(self, **options: Any) -> dict[str, Any]:
        return Scenario(**{"defence": "centered-clip", **options}).as_dict()

    def test_says_the_main_things(self) -> None:
        name = slug(self.config(byzantine=7, attack="alie", seed=3))
        assert name.startswith("digits-centered-clip-7x-alie-seed3-")
        assert slug(self.config()).startswith("digits-centered-clip-no-attack-seed0-")

    def test_differs_where_the_configuration_differs(self) -> None:
        configs: list[dict[str, Any]] = [{}, {"tau": 2.0}, {"seed": 1}, {"steps": 60}, {"device": "cpu", "warmup": 1}]
        assert len({slug(self.config(**options)) for options in configs}) == len(configs)

    def test_is_the_same_for_the_same_configuration_in_any_order(self) -> None:
        config = self.config(byzantine=1)
        assert slug(config) == slug(dict(reversed(config.items())))

    def test_is_one_plain_folder_name(self) -> None:
        name = slug({**self.config(byzantine=1), "task": "../my tasks/täsk.py:a=1"})
        assert "/" not in name
        assert name.isascii()
