"""The summary of a run: the same bytes for the same scenario, so it holds no times, paths or dates."""

import dataclasses
import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

_LONGEST = 60  # characters of a task's, an attack's or a defence's name in the name of a folder


@dataclass(frozen=True)
class RunSummary:
    """Content of `summary.json`; the command line, plots and the page all read it from here."""

    version: str
    peers: int
    byzantine: list[int]
    steps: int
    attack: str | None
    defence: str
    metrics: dict[str, float]
    curve: list[dict[str, float]]
    details: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Write strict JSON: a number that is not finite (the loss of a ruined model) becomes null."""
        fields = dataclasses.asdict(self)
        details = fields.pop("details")
        config = fields.pop("config")
        return json.dumps(finite_or_none({**fields, **details, "config": config}), indent=2, allow_nan=False) + "\n"


def slug(config: dict[str, Any]) -> str:
    """A folder name that is the same for the same configuration and different for another."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    # A file goes by its name alone: folders in front of it would make a name too long for a file system.
    task, defence, lie = (re.sub(r"[^:+]*/", "", str(config[key]))[:_LONGEST] for key in ("task", "defence", "attack"))
    attack = f"{config['byzantine']}x-{lie}" if config["byzantine"] else "no-attack"
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{task}-{defence}-{attack}-seed{config['seed']}-{digest}")


def finite_or_none(value: Any) -> Any:
    """The same value as strict JSON can write it: a number that is not finite becomes None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite_or_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite_or_none(item) for item in value]
    return value
