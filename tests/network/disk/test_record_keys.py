"""Record keys on disk: there before anybody hears of them, and gone when they are old (SPEC U6)."""

import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

from troth.crypto import Identity
from troth.network.disk.lock import DiskError
from troth.network.disk.signing import RecordKeyFiles, erase


def test_a_key_is_on_disk_before_it_is_named_and_there_after_a_crash(tmp_path: Path) -> None:
    """[U6] In the order in which they were made, however many there were."""
    me, keys = Identity.generate().peer, RecordKeyFiles(tmp_path / "keys")
    made = [me]
    for _ in range(12):
        made.append(keys.next(made[-1]))
    assert RecordKeyFiles(tmp_path / "keys").held == tuple(made[1:])
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "keys").iterdir())
    again = RecordKeyFiles(tmp_path / "keys")
    again.keep({made[-2]})
    assert RecordKeyFiles(tmp_path / "keys").held == tuple(made[-2:])
    assert again.next(made[-1]) not in made


def test_an_old_key_is_nowhere_in_the_folder(tmp_path: Path) -> None:
    """[U6] Nor is the one for the first records, wherever it lay."""
    first = Identity.generate()
    first.save(tmp_path / "me.records.key")
    secret = (tmp_path / "me.records.key").read_bytes()
    keys = RecordKeyFiles(tmp_path / "keys", tmp_path / "me.records.key")
    assert keys.held == (first.peer,)
    second = keys.next(first.peer)
    keys.keep({first.peer})
    assert (tmp_path / "me.records.key").read_bytes() == secret
    keys.keep({second})
    assert keys.held == (second,)
    assert secret not in [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    keys.erase()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_erasing_overwrites_first(tmp_path: Path) -> None:
    """[U6] Somebody who has the file open sees nothing either."""
    path = tmp_path / "old.key"
    path.write_bytes(b"secret")
    with path.open("rb") as held:
        erase(path)
        assert held.read() == bytes(6)
    erase(path)  # it is gone already


def test_the_folder_of_a_new_key_outlasts_a_power_cut_too(tmp_path: Path) -> None:
    """[U6] Its own name is on disk before the key is named to anybody."""
    with patch("troth.network.disk.signing.sync_folder") as synced:
        RecordKeyFiles(tmp_path / "keys").next(Identity.generate().peer)
    assert [call.args[0] for call in synced.call_args_list] == [tmp_path, tmp_path / "keys"]


def test_a_copy_that_somebody_made_stops_nobody(tmp_path: Path) -> None:
    """[U6] Nor is it erased in place of the key."""
    keys = RecordKeyFiles(tmp_path)
    old = keys.next(Identity.generate().peer)
    shutil.copy(tmp_path / "000000001.key", tmp_path / "copy of 1.key")
    again = RecordKeyFiles(tmp_path)
    assert again.held == (old,)
    new = again.next(old)
    again.keep({new})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000002.key", "copy of 1.key"]


class _PowerCutError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("at", ["sync", "unlink"])
def test_power_may_go_while_a_key_is_being_erased(tmp_path: Path, at: str) -> None:
    """[U6] Then it is overwritten and still there, and nobody needs it: the peer begins with the others, and removes it."""
    first = Identity.generate()
    first.save(tmp_path / "me.records.key")
    keys = RecordKeyFiles(tmp_path / "keys", tmp_path / "me.records.key")
    second = keys.next(first.peer)
    third = keys.next(second)
    for old in (first.peer, second):
        cut = patch("os.fsync" if at == "sync" else "pathlib.Path.unlink", side_effect=_PowerCutError)
        with pytest.raises(_PowerCutError), cut:
            keys.keep({third, *({second} if old == first.peer else ())})
        path = tmp_path / "me.records.key"
        keys = RecordKeyFiles(tmp_path / "keys", path if path.exists() else None)
        assert old not in keys.held
    assert keys.held == (third,)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["000000002.key"]


def test_a_file_that_could_be_overwritten_but_not_removed_is_removed_later(tmp_path: Path) -> None:
    """[U6] With a clear error in between, as often as it takes."""
    keys = RecordKeyFiles(tmp_path)
    old = keys.next(Identity.generate().peer)
    new = keys.next(old)
    refused = patch("pathlib.Path.unlink", side_effect=PermissionError(13, "Permission denied"))
    with refused, pytest.raises(DiskError, match="cannot erase the old key"):
        keys.keep({new})
    refused = patch("troth.network.disk.signing.erase", side_effect=DiskError("cannot erase the old key"))
    with refused, pytest.raises(DiskError, match="cannot erase the old key"):
        RecordKeyFiles(tmp_path)
    assert RecordKeyFiles(tmp_path).held == (new,)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_key_of_which_nobody_heard_is_dropped_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    keys = RecordKeyFiles(tmp_path)
    held = keys.next(Identity.generate().peer)
    (tmp_path / "new.partial").write_bytes(b"torn")
    assert RecordKeyFiles(tmp_path).held == (held,)
    next(tmp_path.glob("*.key")).write_bytes(b"torn")
    with pytest.raises(DiskError, match="move the folder away and join again"):
        RecordKeyFiles(tmp_path)
