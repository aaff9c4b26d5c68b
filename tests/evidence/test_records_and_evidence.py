"""What is kept, what is signed, and what a stranger can check."""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from troth.crypto import PeerId, Signature
from troth.evidence.beside import StateError
from troth.evidence.form import BanFile, checksum, from_text, to_text
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.core.records import decode_record, encode_record, right_signers
from troth.simulation import ProtocolSimulation


@pytest.fixture(scope="module")
def text(attacked: ProtocolSimulation) -> str:
    """Evidence of the second ban, so that it has a history."""
    return attacked.evidence[1].text


def test_a_quorum_signs_the_record_of_every_step(attacked: ProtocolSimulation) -> None:
    """[U2] With the Commits of the next; and a signature counts for this record only."""
    tools, run = attacked.tools, attacked.run
    for last in attacked.history.last:
        raw, keys = encode_record(last.seen.record), [PeerId(member) for member in last.seen.record.members]
        signed = {
            PeerId(bytes.fromhex(peer)): Signature(bytes.fromhex(signature))
            for peer, signature in last.signed.signatures.items()
        }
        step = last.seen.record.step
        assert right_signers(run.id, step, raw, keys, signed, tools).keys() == set(keys)
        other = encode_record(msgspec.structs.replace(last.seen.record, updated=not last.seen.record.updated))
        assert right_signers(run.id, step, other, keys, signed, tools) == {}
        assert right_signers(run.id, step + 1, raw, keys, signed, tools) == {}
        assert right_signers(run.id, step, raw, keys[1:], signed, tools).keys() == set(keys[1:])


def test_records_lead_from_the_founders_to_the_end(attacked: ProtocolSimulation) -> None:
    """[U2, T5] Each step's members are the last step's less its bans; each starts from the state the last one ended in."""
    records = [decode_record(raw) for raw in attacked.trace]
    assert records[0].members == attacked.run.founders
    for last, now in pairwise(records):
        assert now.members == tuple(member for member in last.members if member not in last.banned)
        assert now.state_before == last.state_after
        assert now.step == last.step + 1


def test_what_is_kept_suffices_to_audit(attacked: ProtocolSimulation) -> None:
    """[K1] The work of the last two steps: commitments, reports and the state they were made from."""
    state = attacked.states[attacked.honest[0]]
    assert len(state.audit_records) == 2
    for step, kept in state.audit_records.items():
        assert kept.step == step
        assert set(kept.commits) == set(kept.reports) == set(kept.contributors)
        assert kept.contributors == decode_record(attacked.trace[step]).contributors


def test_every_ban_is_proved_from_the_bytes_of_its_file(attacked: ProtocolSimulation) -> None:
    """[E1]"""
    for ban, evidence in zip(attacked.bans, attacked.evidence, strict=True):
        proof = verify_ban(evidence.text)
        assert attacked.numbers[proof.banned] == ban.peer
        assert proof.step == ban.step
        assert proof.votes > proof.members / 2
        assert "does not follow from its seed" in proof.sentence()


def test_with_the_state_at_hand_the_recomputation_is_repeated(attacked: ProtocolSimulation) -> None:
    """[E1] And a state that is not the signed one is refused."""
    evidence = attacked.evidence[0]
    assert evidence.training is not None
    proof = verify_ban(evidence.text)
    assert recompute(proof, evidence.training) is Recomputed.CONFIRMED
    other = dataclasses.replace(evidence.training, parameters_D=evidence.training.parameters_D + 1)
    with pytest.raises(StateError):
        recompute(proof, other)


def test_a_wrong_ban_is_refuted_and_other_bits_are_noticed(attacked: ProtocolSimulation) -> None:
    """[E1] A framed peer's gradient proves right; where most roots do not come out, nothing is said about anyone."""
    evidence = attacked.evidence[0]
    assert evidence.training is not None
    proof = verify_ban(evidence.text)
    assert proof.disputed is not None
    assert proof.disputed.step == proof.step - 1 == proof.judgement.step
    honest = next(peer for peer in proof.disputed.contributors if PeerId(peer) in attacked.honest)
    framed = dataclasses.replace(proof, judgement=msgspec.structs.replace(proof.judgement, target=honest))
    assert recompute(framed, evidence.training) is Recomputed.REFUTED
    other_bits = msgspec.structs.replace(proof.disputed, roots=tuple(bytes(32) for _ in proof.disputed.roots))
    foreign = dataclasses.replace(proof, before=(*proof.before[:-1], other_bits))
    assert recompute(foreign, evidence.training) is Recomputed.OTHER_CLASS


def test_a_flipped_byte_anywhere_is_detected(text: str) -> None:
    """[E1] Every 37th byte, three ways."""
    raw = text.encode()
    for where in range(0, len(raw), 37):
        for flip in (0x01, 0x20, 0x80):
            damaged = bytearray(raw)
            damaged[where] ^= flip
            with pytest.raises(UnprovedError):
                verify_ban(damaged.decode("utf-8", errors="replace"))


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key in value for leaf in _leaves(value[key], (*path, key))]
    if isinstance(value, list):
        return [leaf for k, item in enumerate(value) for leaf in _leaves(item, (*path, k))]
    return [path]


def _forge(text: str, path: tuple[Any, ...]) -> str:
    """Change one field and make the checksum fit again, as a forger would."""
    content = json.loads(text)
    slot = content
    for key in path[:-1]:
        slot = slot[key]
    old = slot[path[-1]]
    if isinstance(old, bool):
        new: Any = not old
    elif isinstance(old, int):
        new = old + 1
    elif old is None:
        new = (0.25).hex()
    elif path[-1] in ("tau", "tau_most"):
        new = (float.fromhex(old) * (2 if path[-1] == "tau" else 0.5)).hex()
    elif path[-1] == "tau_least":
        new = (float.fromhex(old) * 2).hex()
    elif path[-1] in ("format", "description"):
        new = old + " "
    elif old == "":
        new = "00" * 32
    else:
        middle = len(old) // 2
        new = old[:middle] + ("0" if old[middle] != "0" else "1") + old[middle + 1 :]
    slot[path[-1]] = new
    file = msgspec.convert(content, BanFile)
    return to_text(msgspec.structs.replace(file, checksum=checksum(file)))


def test_every_field_is_covered_by_more_than_the_checksum(text: str) -> None:
    """[E1] A forger who repairs the checksum still fails, whichever field it changes."""
    paths = [path for path in _leaves(json.loads(text)) if path != ("checksum",)]
    assert len(paths) > 40
    for path in paths:
        with pytest.raises(UnprovedError):
            verify_ban(_forge(text, path))


def test_votes_that_are_missing_doubled_or_of_strangers_do_not_prove(text: str) -> None:
    """[E1, T4]"""
    file = from_text(text)

    def proves(**changes: Any) -> bool:
        changed = msgspec.structs.replace(file, **changes)
        try:
            verify_ban(to_text(msgspec.structs.replace(changed, checksum=checksum(changed))))
        except UnprovedError:
            return False
        return True

    assert proves()
    assert len(file.history) == 1
    assert not proves(votes=file.votes[:2])
    assert not proves(votes=[*file.votes, file.votes[0]])
    assert not proves(votes=[file.votes[0]] * len(file.votes))
    assert not proves(history=[])
    assert not proves(history=[*file.history, *file.history])
    assert len(file.before) == 4
    assert not proves(before=[*file.before[:-1], file.record])
    assert not proves(before=[*file.before, file.record])
    assert not proves(record=file.before[-1])
    assert not proves(accusation=None)
    assert not proves(before=[])
    assert not proves(accusation=file.votes[0])
    assert file.accusation is not None
    assert not proves(banned=file.accusation.sender)
    assert not proves(run=msgspec.structs.replace(file.run, nonce="00" * 32))
    numbers = file.run.parameters
    assert not proves(run=msgspec.structs.replace(file.run, parameters={**numbers, "tau": f" {numbers['tau']}"}))
    assert not proves(banned=file.banned.upper())
    assert not proves(run=msgspec.structs.replace(file.run, parameters={**numbers, "tau": "0x1p99999"}))
    few = dict(list(file.record.signatures.items())[:2])
    assert not proves(record=msgspec.structs.replace(file.record, signatures=few))


def test_evidence_of_one_run_says_nothing_about_another(text: str) -> None:
    """[E1, M1] A second run with the same founders has another id, and nothing fits."""
    file = from_text(text)
    other = msgspec.structs.replace(file, run=msgspec.structs.replace(file.run, description="{}"))
    with pytest.raises(UnprovedError, match="signature"):
        verify_ban(to_text(msgspec.structs.replace(other, checksum=checksum(other))))


@pytest.mark.parametrize("garbage", ["", "{}", "null", "[" * 100_000, "{" * 1000, '{"format": 1}'])
def test_garbage_is_not_evidence(garbage: str) -> None:
    """[E1]"""
    with pytest.raises(UnprovedError):
        verify_ban(garbage)


@pytest.mark.parametrize(
    ("description", "told"),
    [
        (b'{"task": "evil.py", "device": "cpu", "one_by_one": false}', "--task"),
        (b'{"task": "quadratic:dimension=1000000000000", "device": "cpu", "one_by_one": false}', "parameters"),
        (b'{"task": 3}', "does not say what it trains"),
        (b"nonsense", "does not say what it trains"),
    ],
)
def test_a_hostile_description_runs_no_file_and_takes_no_memory(
    attacked: ProtocolSimulation, description: bytes, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[E1] Evidence comes from strangers: `troth verify` must be safe on it."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("raise SystemExit('executed')")
    evidence = attacked.evidence[0]
    assert evidence.training is not None
    proof = verify_ban(evidence.text)
    hostile = dataclasses.replace(proof, run=dataclasses.replace(proof.run, description=description))
    with pytest.raises(StateError, match=told):
        recompute(hostile, evidence.training)
