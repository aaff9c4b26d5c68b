"""Slots that were signed are written down, and never signed again (SPEC B1)."""

import pytest

from tests.protocol.recovery.certified_records import past_steps
from tests.protocol.returning_members import IDENTITIES, PEERS, RUN, SilentLink
from troth.crypto import Digest, PeerId, Slot, signed_bytes
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.link import SignedBeforeError, SignedSlots
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import AttemptView
from troth.protocol.core.records import decode_record
from troth.protocol.wire.messages import Commit, Envelope, Malformed, Phase
from troth.protocol.wire.primitives import Primitives
from troth.workshop.simulation.exchange import PowerCutError


def test_a_step_that_is_made_again_has_slots_of_its_own() -> None:
    """[B1, B5] Incarnations come first: a run that goes back to an earlier step can sign it, and never the old one again."""
    journal, slot = SignedSlots(), Slot(Digest(bytes(32)), 3, Phase.VOTE, 2)
    journal.claim(slot)
    for later in (
        slot._replace(step=4, phase=Phase.COMMIT, attempt=0),
        slot._replace(step=2, incarnation=1, attempt=0, phase=Phase.COMMIT),
        slot._replace(incarnation=1, phase=Phase.COMMIT),
    ):
        journal.claim(later)
        for earlier in (slot, slot._replace(step=9)):
            if later.incarnation > earlier.incarnation or earlier is slot:
                with pytest.raises(SignedBeforeError):
                    journal.claim(earlier)
    assert (journal.last_incarnation, journal.last_step) == (1, 3)


def test_no_slot_is_signed_that_is_not_later_than_all_before() -> None:
    """[B1] Not the same, not an earlier phase, attempt or step; a new attempt begins with an earlier phase."""
    journal = SignedSlots()
    assert journal.last_step == -1
    slot = Slot(RUN.id, 3, Phase.COMMIT)
    later = [(3, 0, Phase.COMMIT), (3, 0, Phase.ACCUSE), (3, 1, Phase.CLIP), (3, 1, Phase.VOTE), (4, 0, Phase.COMMIT)]
    for step, attempt, phase in later:
        journal.claim(slot._replace(step=step, attempt=attempt, phase=phase))
        assert journal.last_step == step
        for again in [(step, attempt, phase), (3, 0, Phase.COMMIT), (step - 1, 9, Phase.VOTE)]:
            with pytest.raises(SignedBeforeError):
                journal.claim(slot._replace(step=again[0], attempt=again[1], phase=again[2]))


def test_a_slot_is_written_down_before_anything_is_sent() -> None:
    """[B1] A member that signed before, and knows it, sends nothing; and nothing is sent before it would be known."""
    slot, commit = Slot(RUN.id, 3, Phase.COMMIT), Commit(None, bytes(32), bytes(32))
    for signed_before in (False, True):
        journal, link = SignedSlots(), SilentLink()
        channel = BroadcastChannel(IDENTITIES[0], link, Timeouts(), Primitives(), journal)
        if signed_before:
            journal.claim(slot)
        with pytest.raises(SignedBeforeError if signed_before else PowerCutError):
            channel.announce(slot, commit, AttemptView(frozenset(PEERS))).send(None)
        assert journal.last_step == 3
        assert len(link.sent) == (0 if signed_before else len(PEERS) - 1)


def test_a_signature_under_a_record_is_no_message() -> None:
    """[U2, U4, Q6] Close carries one under the run's last record: shown as a second message of its announcement, it would make
    an honest member one that said two things."""
    run, (signed, *_), _ = past_steps()
    slot = Slot(run.id, decode_record(signed.record).step, Phase.CLOSE)
    for peer, signature in signed.signatures.items():
        assert isinstance(Primitives().open(slot, PeerId(peer), Envelope(signed.record, signature)), Malformed)
        digest = Primitives().digest(signed.record)
        assert not Primitives().verify(PeerId(peer), signed_bytes(slot, PeerId(peer), digest), signature)
