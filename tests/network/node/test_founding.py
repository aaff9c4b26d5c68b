"""When founders begin: everyone is there, or enough of them and no patience left (SPEC B5)."""

import dataclasses
from collections.abc import Iterable, Mapping

import pytest

from troth.crypto import Identity, PeerId, derive
from troth.network.manifest.toml import ManifestError
from troth.network.neighbour import Standing
from troth.network.node import founding
from troth.network.node.founding import (
    FoundingConditions,
    FoundingDecision,
    FoundingOutcome,
    Presence,
    begin_with_the_others,
    decide,
    lacking,
    meet_members,
)
from troth.protocol.core.roster import RecordKey, Roster
from troth.protocol.core.run import Parameters, Run

KEYS = tuple(sorted(Identity.from_secret(derive(0, "founding", k)).peer for k in range(7)))
ME, OTHERS = KEYS[0], KEYS[1:]
ROSTER = Roster.founding(Run(KEYS, b"test", Parameters(size=70, tau=1.0, byzantine=2), bytes(32)))
HERE, READY, BEGUN, GONE_ON = (
    Standing(False, False, 0),
    Standing(True, False, 0),
    Standing(True, True, 0),
    Standing(True, True, 3),
)


def founders(restart_with: int | None = None) -> FoundingConditions:
    return FoundingConditions(ME, ROSTER, 60.0, restart_with, lambda peer: f"p{KEYS.index(peer)}")


def seen(
    standings: Mapping[PeerId, Standing], refused: Iterable[PeerId] = (), trouble: str = "not reached yet"
) -> Presence:
    troubles = {peer: trouble for peer in OTHERS if peer not in standings}
    return Presence(standings, dict.fromkeys(refused, "another run"), troubles)


def all_of(standing: Standing, count: int = len(OTHERS)) -> dict[PeerId, Standing]:
    return dict.fromkeys(OTHERS[:count], standing)


def test_everyone_is_ready() -> None:
    decision = decide(0.0, seen(all_of(READY)), founders())
    assert (decision.outcome, decision.ready) == (FoundingOutcome.BEGIN, True)


def test_a_founder_that_lacks_its_record_key_begins_nothing_and_may_come_back() -> None:
    """[U6, B1] It waits for the others first: they may have begun long ago, and it may have lost its folder."""
    lacks = dataclasses.replace(founders(), lacks="no key")
    assert decide(0.0, seen({}), lacks).outcome is FoundingOutcome.WAIT
    assert decide(0.0, seen(all_of(READY)), lacks) == FoundingDecision(FoundingOutcome.REFUSED, False, "no key")
    assert decide(0.0, seen(all_of(GONE_ON)), lacks).outcome is FoundingOutcome.RUNNING
    roster = dataclasses.replace(ROSTER, record_keys=(RecordKey(ME, OTHERS[0]),))
    assert lacking(ROSTER, ME, ()) == lacking(roster, ME, (OTHERS[0],)) == ""
    assert "troth key records" in lacking(roster, ME, (OTHERS[1],))


def test_everyone_is_there_and_not_all_have_said_that_they_are_ready() -> None:
    decision = decide(0.0, seen(all_of(READY) | {OTHERS[0]: HERE}), founders())
    assert (decision.outcome, decision.ready) == (FoundingOutcome.WAIT, True)
    assert decision.reason == "all 7 founders are here; waiting for p1 to reach everyone too"


def test_somebody_is_missing_and_patience_decides() -> None:
    """[B5] Enough are as many as a restart needs: no fewer may begin, however long they wait."""
    assert ROSTER.restart_quorum == 6
    early = decide(12.0, seen(all_of(READY, 5)), founders())
    assert "enough to begin without the others in 50 s; waiting for p6" in early.reason
    patient = decide(59.9, seen(all_of(READY, 5)), founders())
    assert (patient.outcome, patient.ready) == (FoundingOutcome.WAIT, False)
    assert patient.reason == (
        "6 of 7 founders are here, enough to begin without the others in 10 s; waiting for p6 (not reached yet)"
    )
    assert decide(60.0, seen(all_of(READY, 5)), founders()).outcome is FoundingOutcome.BEGIN
    too_few = decide(1e9, seen(all_of(READY, 4)), founders())
    assert (too_few.outcome, too_few.ready) == (FoundingOutcome.WAIT, False)
    assert too_few.reason.startswith("5 of 7 founders are here, 6 are needed; waiting for p5 (not reached yet), p6")


@pytest.mark.parametrize(("restart_with", "enough"), [(None, 6), (7, 6), (5, 5), (4, 4), (1, 4)])
def test_people_may_agree_on_fewer_but_not_on_less_than_a_quorum(restart_with: int | None, enough: int) -> None:
    """[B5]"""
    assert ROSTER.quorum == 4
    some = founders(restart_with)
    assert some.enough == enough
    assert decide(60.0, seen(all_of(READY, enough - 1)), some).outcome is FoundingOutcome.BEGIN
    assert decide(60.0, seen(all_of(READY, enough - 2)), some).outcome is FoundingOutcome.WAIT


def test_one_of_two_does_not_begin_alone_and_one_of_one_does() -> None:
    """[B5] Without liars a restart quorum is smaller than a quorum: a founder that began would only stall."""

    def company(count: int) -> FoundingConditions:
        run = Run((ME, *OTHERS)[:count], b"", Parameters(size=40, tau=1.0, byzantine=0), bytes(32))
        return FoundingConditions(ME, Roster.founding(run), 60.0, None, lambda _: "p")

    assert company(2).roster.restart_quorum == 1
    assert decide(1e9, Presence({}, {}, {}), company(2)).outcome is FoundingOutcome.WAIT
    assert decide(0.0, Presence({}, {}, {}), company(1)).outcome is FoundingOutcome.BEGIN


def test_a_founder_that_arrives_while_others_begin_goes_with_them() -> None:
    """They agreed without waiting for it; everyone is there now, and not all of them are ready any more."""
    standings = all_of(READY) | {OTHERS[0]: BEGUN, OTHERS[1]: HERE}
    assert decide(0.0, seen(standings), founders()).outcome is FoundingOutcome.BEGIN
    assert decide(0.0, seen(standings | {OTHERS[0]: READY}), founders()).outcome is FoundingOutcome.WAIT


def test_liars_alone_cannot_say_that_the_run_goes_on() -> None:
    """[B1] A peer that believed it would give up its key."""
    assert ROSTER.liars == 2
    assert decide(0.0, seen(all_of(READY) | all_of(GONE_ON, 2)), founders()).outcome is FoundingOutcome.BEGIN
    assert decide(0.0, seen(all_of(READY) | all_of(GONE_ON, 3)), founders()).outcome is FoundingOutcome.RUNNING


def test_nobody_will_ever_train_with_this_peer() -> None:
    decision = decide(0.0, seen({}, refused=OTHERS[:4]), founders())
    assert decision.outcome is FoundingOutcome.REFUSED
    assert decision.reason == (
        "p1, p2, p3, p4 cannot train with this peer: another run; everybody needs the same run.toml"
    )
    assert decide(0.0, seen({}, refused=OTHERS[:3]), founders()).outcome is FoundingOutcome.WAIT
    assert decide(0.0, seen(all_of(HERE, 1), refused=OTHERS[1:]), founders()).outcome is FoundingOutcome.WAIT


class _Network:
    """Shows one view after another, answers a stranger as it is told to, and remembers how this peer stood."""

    def __init__(self, *views: Presence, answers: Mapping[PeerId, bool | None] | None = None) -> None:
        self._views = list(views)
        self._answers = answers or {}
        self.stood: list[Standing] = []
        self.asked: list[str] = []

    def presence(self) -> Presence:
        return self._views.pop(0) if len(self._views) > 1 else self._views[0]

    def stand(self, standing: Standing) -> None:
        self.stood.append(standing)

    def ask_whether_reached(self, address: str) -> bool:
        self.asked.append(address)
        return True

    def reached(self) -> Mapping[PeerId, bool | None]:
        return self._answers


def test_the_others_hear_that_this_peer_is_ready_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(founding, "_TELL_EVERY_S", 0.0)
    network, notes = _Network(seen(all_of(HERE, 2)), seen(all_of(HERE)), seen(all_of(READY))), list[str]()
    assert begin_with_the_others(network, founders(), notes.append)
    assert network.stood == [HERE, READY, READY, BEGUN]
    assert [note.split(" of")[0] for note in notes] == [
        "3",
        "all 7 founders are here; waiting for p1, p2, p3, p4, p5, p6 to reach everyone too",
    ]


def test_the_loop_ends_where_there_is_nothing_to_begin() -> None:
    network = _Network(seen(all_of(GONE_ON)))
    assert not begin_with_the_others(network, founders(), lambda _: None)
    assert network.stood == []
    with pytest.raises(ManifestError, match=r"everybody needs the same run\.toml"):
        begin_with_the_others(_Network(seen({}, refused=OTHERS)), founders(), lambda _: None)


# A stranger


STRANGER = FoundingConditions(
    Identity.from_secret(derive(0, "stranger")).peer, ROSTER, 60.0, None, lambda peer: f"p{KEYS.index(peer)}"
)


def test_a_stranger_waits_for_a_member_and_tells_whom_it_cannot_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(founding, "_TELL_EVERY_S", 0.0)
    notes = list[str]()
    network = _Network(Presence({}, {}, {OTHERS[0]: "connection refused"}), seen(all_of(GONE_ON, 1)))
    meet_members(network, STRANGER, notes.append, "")
    assert notes == ["no member answers yet; waiting for p1 (connection refused)"]
    assert network.asked == [], "it gave no address, so there is nothing to check"


def test_a_stranger_that_nobody_will_train_with_is_told_why() -> None:
    with pytest.raises(
        ManifestError, match=r"cannot train with this peer: another run; everybody needs the same run\.toml"
    ):
        meet_members(_Network(seen({}, refused=KEYS)), STRANGER, lambda _: None, "")


YES, UNCHECKED = (
    "others can reach this peer at here:1",
    "whether others can reach this peer at here:1 was not checked: too few",
)


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ((True, False, None), YES),
        ((False, False, False, True), YES),
        ((None,), UNCHECKED),
        ((), UNCHECKED),
        ((False, False), UNCHECKED),  # as many as may lie
    ],
)
def test_one_member_that_reached_it_is_enough(answers: tuple[bool | None, ...], says: str) -> None:
    notes = list[str]()
    network = _Network(seen(all_of(GONE_ON, 4)), answers=dict(zip(OTHERS, answers, strict=False)))
    meet_members(network, STRANGER, notes.append, "here:1", answers_s=0.1)
    assert [note.startswith(says) for note in notes] == [True]
    assert set(network.asked) == {"here:1"}


def test_a_stranger_that_nobody_reaches_is_told_how_to_mend_it() -> None:
    network = _Network(seen(all_of(GONE_ON, 4)), answers=dict.fromkeys(OTHERS[: ROSTER.liars + 1], False))
    with pytest.raises(ManifestError, match=r"that tried \(3\) cannot reach this peer at here:1: let that port"):
        meet_members(network, STRANGER, lambda _: None, "here:1", answers_s=5.0)
