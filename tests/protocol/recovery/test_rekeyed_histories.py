"""Histories in which keys change, as strangers follow them, and liars leave changes out (SPEC U6, J8, J9)."""

import dataclasses
from functools import cache
from itertools import pairwise

import msgspec
import pytest

from tests.protocol.recovery.certified_records import led_by
from tests.protocol.scripted_world import LiarScript, WorldRun, peer_ids, plan, run_world
from troth.crypto import PeerId, Slot
from troth.protocol.core.records import decode_record, encode_record
from troth.protocol.recovery.following import Changes, NewestRecord, shown_history
from troth.protocol.wire.frames import CertifiedRecord, HistoryShown
from troth.protocol.wire.messages import Commit, Message
from troth.protocol.wire.primitives import Primitives

TOOLS = Primitives()
STEPS, EVERY, ALONE = 12, 4, 6  # the liar changes its key alone, in that step
LIAR = peer_ids(1, 5)[0]


class _ChangesAlone(LiarScript):
    """Names a record key, which is its own key, when nobody else does."""

    def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
        lies = isinstance(message, Commit) and slot.step == ALONE
        return msgspec.structs.replace(message, record_key=me) if lies else message


@cache
def _seen() -> WorldRun:
    made = dataclasses.replace(plan(steps=STEPS), rekey_every=EVERY, probation=8)
    return run_world(made, _ChangesAlone()).check_promises()


@cache
def _certified() -> list[CertifiedRecord]:
    return [
        CertifiedRecord(encode_record(made.record), {bytes(p): bytes(s) for p, s in after.certificate.items()})
        for made, after in pairwise(_seen().world.witness)
    ]


def _shown(at: int, without: int | None = None) -> HistoryShown:
    """What a member shows at this step; a liar leaves a change out."""
    changes = [one for one in _certified()[:at] if decode_record(one.record).changes_roster]
    kept = [one for one in changes if decode_record(one.record).step != without]
    state = _seen().world.witness[at].state
    standing = state.common
    return shown_history(kept, _certified()[at], standing, 64)


def _followed(shown: HistoryShown) -> NewestRecord | None:
    changes = led_by(Changes.founding(_seen().world.run), shown.changes, TOOLS)
    return NewestRecord.of(changes, shown, TOOLS)


@pytest.mark.long
def test_whoever_follows_changes_alone_knows_the_keys_of_every_step() -> None:
    """[U6, J8] And so what members have to sign with next."""
    for at, outcome in enumerate(_seen().world.witness[: STEPS - 1]):
        tip = _followed(_shown(at))
        assert tip is not None
        assert tip.state(outcome.state, TOOLS).last == outcome.state.last
        assert tip.changes.roster.after(tip.record).record_keys == outcome.state.roster.record_keys


@pytest.mark.long
def test_nobody_can_leave_out_that_it_changed_its_key() -> None:
    """[U6, J8, J9] The others' signatures alone would fit. The stranger would see two histories and stop, for one liar's word;
    and would take the liar's next signature for a wrong one."""
    changes = [record.step for record in _seen().records if record.rekeyed]
    assert changes == [0, 4, ALONE, 8]
    assert [one.member for one in _seen().records[ALONE].rekeyed] == [LIAR]
    for at in range(ALONE + 1, 8):
        right = _followed(_shown(at))
        assert right is not None
        assert [step for step, _ in right.changed] == [0, 4, ALONE]
        assert _followed(_shown(at, without=ALONE)) is None


def test_a_change_that_was_left_out_leads_no_stranger_astray() -> None:
    """[U6, J8] Else it would go on from there, and take what honest members show for another history."""
    founders = Changes.founding(_seen().world.run)
    right, wrong = _shown(STEPS - 2).changes, _shown(STEPS - 2, without=ALONE).changes
    assert len(right) == len(wrong) + 1
    led = led_by(founders, wrong, TOOLS)
    assert [step for step, _ in led.named] == [0, 4]
    assert led_by(led, right[2:], TOOLS) == led_by(founders, right, TOOLS), "somebody else goes on from there"
