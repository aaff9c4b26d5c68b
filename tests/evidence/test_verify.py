"""Verifying a ban from the bytes of its file: whatever is changed in it is noticed."""

import json
from typing import Any

import msgspec
import pytest

from troth.evidence.file_format import BanFile, checksum, from_text, to_text
from troth.evidence.verify import UnprovedError, verify_ban
from troth.workshop.simulation import ProtocolSimulation


@pytest.fixture(scope="module")
def text(attacked: ProtocolSimulation) -> str:
    """Evidence of the second ban, so that it has a history."""
    return attacked.evidence[1].text


def test_every_ban_is_proved_from_the_bytes_of_its_file(attacked: ProtocolSimulation) -> None:
    """[E1]"""
    for ban, evidence in zip(attacked.bans, attacked.evidence, strict=True):
        proof = verify_ban(evidence.text)
        assert attacked.numbers[proof.banned] == ban.peer
        assert proof.step == ban.step
        assert proof.votes > proof.members / 2
        assert "does not follow from its seed" in proof.sentence()


@pytest.mark.long
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
    container = content
    for key in path[:-1]:
        container = container[key]
    old = container[path[-1]]
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
    container[path[-1]] = new
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
