"""Keys that sign records: who may change them, when, and which are erased (SPEC U6)."""

import itertools

import msgspec
import pytest

from tests.protocol.recovery.certified_records import past_steps
from troth.crypto import Identity, PeerId, derive, verify
from troth.protocol.core.records import LostKeyError, RecordKeys, Rekeyed, Returned, StepRecord, decode_record
from troth.protocol.core.roster import RecordKey, Roster
from troth.protocol.core.run import Parameters, Run, RunError

KEYS = [PeerId(bytes([number]) * 32) for number in range(1, 9)]
EVERY = 10


def _seeded() -> RecordKeys:
    numbers = itertools.count()
    return RecordKeys(make=lambda: Identity.from_secret(derive(0, "record key", next(numbers))))


def _record(step: int, updates: int, **fields: object) -> StepRecord:
    members = tuple(sorted(KEYS[:4]))
    return msgspec.structs.replace(
        decode_record(past_steps()[1][0].record), step=step, members=members, updates=updates, **fields
    )


# The keys of one peer


def test_a_key_is_kept_until_it_is_in_use_and_old_ones_are_erased() -> None:
    """[U6]"""
    keys, mine = _seeded(), KEYS[0]
    first = keys.next(mine)
    assert keys.next(mine) == first, "nobody has agreed on it yet"
    second = keys.next(first)
    assert list(keys.held) == [first, second]
    assert verify(first, b"a record", keys.sign(first, b"a record"))
    keys.keep({first})
    assert list(keys.held) == [first, second], "the newest may be in use before this peer knows it"
    keys.keep({second})
    assert list(keys.held) == [second]
    with pytest.raises(LostKeyError, match="Move the folder away and join again"):
        keys.sign(first, b"a record")
    keys.erase()
    assert not keys.held


# The roster


def test_a_member_signs_with_its_own_key_until_it_changes() -> None:
    """[U6] A record is signed with the keys from before it."""
    roster = Roster(tuple(sorted(KEYS[:4])))
    assert roster.signers == {key: key for key in KEYS[:4]}
    after = roster.after(_record(0, 1, rekeyed=(Rekeyed(KEYS[0], KEYS[5]),)))
    assert after.signers == {**roster.signers, KEYS[0]: KEYS[5]}
    assert after.record_key(KEYS[0]) == KEYS[5]
    assert after.after(_record(1, 2)).signers == after.signers


def test_keys_change_once_in_so_many_updates_all_at_the_same_time() -> None:
    """[U6] Else a liar could have strangers follow a change in every step."""
    roster = Roster(tuple(sorted(KEYS[:4])))
    assert all(roster.may_rekey(key, EVERY) for key in roster.members)
    after = roster.after(_record(3, 4, rekeyed=(Rekeyed(KEYS[0], KEYS[5]),)))
    assert not after.may_rekey(KEYS[0], EVERY)
    assert after.may_rekey(KEYS[1], EVERY)
    later = [after.after(_record(step, step)) for step in range(4, 12)]
    assert [one.may_rekey(KEYS[0], EVERY) for one in later] == [False] * 6 + [True] * 2


def test_absent_peers_keep_their_key_and_a_successor_begins_with_its_own() -> None:
    """[U6, B3] Whoever lost its folder has no record key either."""
    roster = Roster(
        tuple(sorted(KEYS[:4])), record_keys=(RecordKey(KEYS[0], KEYS[5], 1), RecordKey(KEYS[1], KEYS[6], 1))
    )
    gone = roster.after(_record(5, 6, absent=(KEYS[0],)))
    assert KEYS[0] not in gone.signers
    assert gone.record_key(KEYS[0]) == KEYS[5]
    same = gone.after(_record(6, 7, returned=(Returned(KEYS[0], KEYS[0]),)))
    assert same.signers[KEYS[0]] == KEYS[5]
    other = gone.after(_record(6, 7, returned=(Returned(KEYS[0], KEYS[7]),)))
    assert other.signers[KEYS[7]] == KEYS[7]
    assert other.may_rekey(KEYS[7], EVERY)
    assert [one.peer for one in other.record_keys] == [KEYS[1]]


def test_a_change_of_keys_is_a_change_that_strangers_follow() -> None:
    """[U6, J8]"""
    assert _record(0, 1, rekeyed=(Rekeyed(KEYS[0], KEYS[5]),)).changes_roster
    assert not _record(0, 1).changes_roster


# The run


def test_founders_may_begin_with_other_keys_which_are_part_of_the_run() -> None:
    """[U6, M1]"""
    keys, parameters = tuple(sorted(KEYS[:4])), Parameters(size=10, tau=1.0, byzantine=1)
    plain = Run(keys, b"", parameters, bytes(32))
    named = Run(keys, b"", parameters, bytes(32), ((KEYS[0], KEYS[5]),))
    assert len({plain.id, named.id, Run(keys, b"", parameters, bytes(32), ((KEYS[0], KEYS[6]),)).id}) == 3
    assert Roster.founding(named).signers == {**Roster.founding(plain).signers, KEYS[0]: KEYS[5]}
    assert Roster.founding(named).may_rekey(KEYS[0], EVERY), "at once"
    with pytest.raises(RunError, match="record keys must be founders'"):
        Run(keys, b"", parameters, bytes(32), ((KEYS[6], KEYS[5]),))


def test_how_often_keys_change_is_bounded_and_part_of_the_run() -> None:
    """[U6]"""
    usual = Parameters(size=10, tau=1.0, byzantine=1)
    assert "rekey_every" not in usual.plain()
    other = Parameters(size=10, tau=1.0, byzantine=1, rekey_every=7)
    assert Parameters.from_plain(other.plain()) == other
    for wrong in (0, -1, 1 << 30):
        with pytest.raises(RunError, match="rekey_every"):
            Parameters(size=10, tau=1.0, byzantine=1, rekey_every=wrong)
