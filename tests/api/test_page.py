"""docs/python-api.md: its examples run in order, in one folder, and its tables name everything that is public."""

import re
from pathlib import Path

import pytest

import troth

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/python-api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
EMBEDDING = (ROOT / "examples/embedding.py").read_text(encoding="utf-8")


@pytest.mark.long
def test_examples_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that joins a run is `embedding.py`, which four processes run in `test_examples.py`."""
    monkeypatch.chdir(tmp_path)
    ran = 0
    for block in BLOCKS:
        if "def main(" in block:
            assert block in EMBEDDING, "the page shows another program than the one that is tested"
            continue
        names: dict[str, object] = {}
        if "verdict" in block:
            (evidence, *_) = sorted((tmp_path / "results/evidence").glob("ban-*.json"))
            block = block.replace("ban-step8-peer2.json", evidence.name)
        exec(compile(block, "python-api.md", "exec"), names)
        assert bool(names.get("verdict", True))
        ran += 1
    assert ran == len(BLOCKS) - 1
    assert troth.Manifest.load(tmp_path / "run.toml").steps == 500


def test_every_public_name_is_on_the_page() -> None:
    for name in set(troth.__all__) - {"__version__", "Simulation", "SimulationResult", "MemberRun", "Result"}:
        assert re.search(rf"`(troth\.)?{name}\b", PAGE), name
