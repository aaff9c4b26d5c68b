"""`troth demo`: what a newcomer sees first."""

import json
import re
from pathlib import Path

from tests.cli.conftest import Troth

RUNS = ("no-attack-plain-mean", "under-attack-mean", "summary")


def test_demo_shows_the_ruin_and_the_rescue(troth: Troth) -> None:
    """The one slow test here: two simulations, and eight processes."""
    done = troth("demo", "--out", "shown", "--steps", "120")
    assert done.code == 0
    assert re.search(f"^Picture: +{Path('shown/demo.png')}$", done.out, flags=re.MULTILINE)
    assert Path("shown/demo.png").read_bytes().startswith(b"\x89PNG")
    summaries = [json.loads(Path(f"shown/{run}.json").read_text()) for run in RUNS]
    calm, mean, protocol = (summary["metrics"]["accuracy"] for summary in summaries)
    assert mean < 0.30
    assert calm > 0.9
    assert protocol > 0.9
    for accuracy in (calm, mean, protocol):
        assert f"{accuracy:>6.1%} of the test digits right" in done.out
    bans = summaries[-1]["banned"]
    assert {ban["peer"] for ban in bans} == set(summaries[-1]["byzantine"]), "all liars are banned and nobody else"
    assert "3 of 3 files verify" in done.out
    assert summaries[-1]["agreement"] is True


def test_demo_refuses_a_folder_it_cannot_write_to(troth: Troth) -> None:
    Path("file").touch()
    done = troth("demo", "--out", "file/below")
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("troth: cannot write to --out file/below")
