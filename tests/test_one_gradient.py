"""docs/one-gradient.md is true: every hop exists, and is made when three peers train over TCP."""

import ast
import re
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import troth
from tests.network.node.test_node import IDS, SilentSink, free_address
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.manifest import Founder
from troth.network.manifest.options import ManifestOptions
from troth.network.node.node import Node
from troth.network.node.options import NodeOptions

SOURCE = Path(troth.__file__).parent
PAGE = (SOURCE.parents[1] / "docs/one-gradient.md").read_text(encoding="utf-8")
HOPS = {(file, name) for file, name in re.findall(r"`((?:[a-z0-9_]+/)+[a-z0-9_]+\.py)(?::(\w+))?`", PAGE) if name}
BEFORE = {("cli/join.py", "join")}  # what makes the nodes; here the test does


def test_every_hop_is_a_function_or_class_of_its_file() -> None:
    assert len(HOPS) > 50
    defined = {
        (file, getattr(node, "name", None))
        for file in {file for file, _ in HOPS}
        for node in ast.walk(ast.parse((SOURCE / file).read_text(encoding="utf-8")))
    }
    assert HOPS - defined == set()


@pytest.mark.long
def test_three_peers_that_train_make_every_hop(tmp_path: Path) -> None:
    founders = tuple(Founder(f"peer{k}", one.peer, free_address()) for k, one in enumerate(IDS))
    options = ManifestOptions(steps=3, delta_s=1.0, compute_s=1.0, bulk_s=0.5)
    manifest = build_manifest("quadratic", founders, options).manifest
    called: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    def live(number: int) -> None:
        Node(manifest, IDS[number], NodeOptions(tmp_path / str(number), founders[number].address), SilentSink()).live()

    threading.setprofile(note)
    try:
        threads = [threading.Thread(target=live, args=(number,), daemon=True) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
    finally:
        threading.setprofile(None)
    assert (tmp_path / "0/model.json").exists()
    made = {
        (Path(file).relative_to(SOURCE).as_posix(), part)
        for file, qualified in called
        if file.startswith(str(SOURCE))
        for part in qualified.split(".")
    }
    assert HOPS - made == BEFORE
