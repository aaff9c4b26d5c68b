"""Recipes: the sweeps that come with Troth. Each is a file beside this one, to run by name or to begin one's own with."""

from pathlib import Path

from troth.specs import pick
from troth.workshop.lab.sweep import Sweep
from troth.workshop.lab.sweep_file import read_sweep

_HERE = Path(__file__).parent / "recipes"


def recipes() -> dict[str, Path]:
    """Files of the recipes, by name."""
    return {path.stem: path for path in sorted(_HERE.glob("*.toml"))}


def find_sweep(name: str) -> Sweep:
    """A sweep's file, or a recipe by name; a recipe's own files are looked for where the command runs."""
    if name.endswith(".toml") or "/" in name:
        return read_sweep(Path(name))
    return read_sweep(pick(recipes(), name, "recipe"), Path.cwd())
