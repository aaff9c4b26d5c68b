"""Evidence for people: of bans, and of equivocations in a record that a restart threw away."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.protocol.scripted_world import plan, run_world
from troth.crypto import PeerId, Signature, Slot
from troth.network.node.evidence import EvidenceFiles
from troth.protocol.wire.messages import Envelope, Phase
from troth.simulation.chaos.world import World


@cache
def world() -> World:
    return run_world(plan(liars=(), steps=5)).world


def short(peer: PeerId) -> str:
    return peer.hex()[:4]


def test_an_equivocation_in_a_record_that_is_thrown_away_is_kept_for_people(tmp_path: Path) -> None:
    """[B5] Its audits are made again by everyone; two signed messages for one slot prove a lie to anyone."""
    run, outcome, notes = world().run, world().witness[-1], list[str]()
    liar, slot = run.founders[0], Slot(run.id, outcome.record.step, Phase.CLIP, 0)
    messages = Envelope(b"one", Signature(bytes(64))), Envelope(b"two", Signature(bytes([1]) * 64))
    files = EvidenceFiles(tmp_path / "evidence", run, short, notes.append)
    files.add(replace(outcome, equivocations={liar: (slot, *messages)}))
    assert not (tmp_path / "evidence").exists(), "nobody was banned"
    files.discarded(outcome.record)
    assert notes == [
        f"step {outcome.record.step} was not certified when this peer stopped: it is made again, or taken from the others"
    ]
    (file,) = (tmp_path / "evidence").iterdir()
    assert file.name == f"discarded-step{outcome.record.step}-{short(liar)}.json"
    proof = json.loads(file.read_text())
    assert (proof["run"], proof["sender"], proof["slot"]) == (run.id.hex(), liar.hex(), list(slot[1:]))
    assert [bytes.fromhex(payload) for payload, _ in proof["said"]] == [b"one", b"two"]


def test_a_record_that_was_not_the_last_one_has_nothing_to_show(tmp_path: Path) -> None:
    run, (*_, before, last), notes = world().run, world().witness, list[str]()
    files = EvidenceFiles(tmp_path / "evidence", run, short, notes.append)
    files.add(before)
    files.discarded(last.record)
    assert len(notes) == 1
    assert not (tmp_path / "evidence").exists()
