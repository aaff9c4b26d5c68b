"""A journal told as events: only what a quorum signed, in order (SPEC U2)."""

from collections.abc import Callable

import pytest

from tests.audit.forger import Forger
from troth.events.kinds import Stepped
from troth.watch.journal import JournalEventsError, journal_events

BAN = 9  # step of the ban


def _steps(forger: Forger) -> list[Stepped]:
    return [event for event in journal_events(forger.folder, forger.manifest) if isinstance(event, Stepped)]


def test_every_certified_record_is_told_once(forger: Forger) -> None:
    """[U2] One whose signatures a power cut spared is not."""
    told = _steps(forger)
    assert [event.step for event in told] == list(range(forger.manifest.steps + 1))
    assert [event.step for event in told if event.banned] == [BAN]
    assert told[-1].closing
    del forger.lines[forger.at(BAN) + 1 :]
    forger.write(marks=False)
    assert [event.step for event in _steps(forger)] == list(range(BAN))


def _signed_by_too_few(forger: Forger) -> None:
    forger.sign(4, forger.record(4), signers=3)


def _signed_wrongly(forger: Forger) -> None:
    signed = forger.lines[forger.at(4) + 1]["signatures"]
    one, other = sorted(signed)[:2]
    signed[one] = signed[other]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_signed_by_too_few, "fewer than 4 of its 6 members signed it"),
        (_signed_wrongly, "does not fit"),
        (lambda forger: forger.lines.insert(3, {"kind": "other"}), "not a line of a journal"),
    ],
    ids=["too few", "a wrong signature", "no line"],
)
def test_nothing_is_told_of_a_record_that_no_quorum_signed(
    forger: Forger, change: Callable[[Forger], None], why: str
) -> None:
    """[U2, E5] Whoever holds a folder can write a journal whose chain holds."""
    change(forger)
    forger.write(marks=False)
    with pytest.raises(JournalEventsError, match=why):
        _steps(forger)


def test_behind_a_gap_members_follow_from_the_records_that_changed_them(forger: Forger) -> None:
    """[J8] A stranger that comes back after long begins again at a later record. A change that is not there is missed."""
    forger.drop_record(4)
    forger.write(marks=False)
    assert [event.step for event in _steps(forger)] == [0, 1, 2, 3, *range(5, forger.manifest.steps + 1)]
    (forger.folder / "journal" / "roster-changes.jsonl").unlink()
    forger.drop_record(BAN)
    forger.write(marks=False)
    with pytest.raises(JournalEventsError, match="another roster"):
        _steps(forger)
