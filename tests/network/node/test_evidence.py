"""Evidence for people: of bans, and of equivocations in a record that a restart threw away."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.protocol.scripted_world import plan, run_world
from troth.crypto import PeerId, Signature, Slot
from troth.events.from_step import event_of_outcome
from troth.evidence.file_format import UnprovedError
from troth.evidence.verify import verify_ban
from troth.network.node.evidence import EvidenceFiles, explain_ban
from troth.protocol.wire.messages import Envelope, Phase
from troth.workshop.chaos.world import World


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


def test_the_banned_peer_keeps_what_it_holds_of_the_evidence_and_is_told_why(tmp_path: Path) -> None:
    """The others' signatures under a ban come with the next step, and it does not hear them any more."""
    made = run_world(plan(peers=4, liars=(0,), forge_from={0: 1}, steps=5)).world
    run, notes, files = made.run, list[str](), EvidenceFiles(tmp_path / "evidence", made.run, short, list[str]().append)
    seen = next(outcome for outcome in made.witness if outcome.record.banned)
    for outcome in made.witness[: seen.record.step + 1]:
        files.add(outcome)
    assert files.unsigned(next(peer for peer in run.founders if peer not in seen.record.banned)) is None
    (banned,) = map(PeerId, seen.record.banned)
    path = files.unsigned(banned)
    assert path is not None
    state = next((tmp_path / "evidence").glob("state-*.safetensors"))
    assert {path, state} == set((tmp_path / "evidence").iterdir())
    with pytest.raises(UnprovedError, match="members signed it"):
        verify_ban(path.read_text(), run.id)
    event, me = event_of_outcome(run, seen, short, of=9), short(banned)
    notes += explain_ban(event, me, path, "digits", door=False)
    why, votes, evidence, check, back = notes
    assert why.startswith(f"why: {me} committed to a gradient in step {seen.record.step - 1}.")
    assert why.endswith(f"{me} is banned.")
    assert votes.endswith(f"{me} is wrong")
    assert (
        f"{path}, as far as this peer holds it; with the others' signatures, ban-step{seen.record.step}-{me}.json"
        in evidence
    )
    assert "troth doctor --task digits" in check
    assert back.startswith("a ban is for good")
