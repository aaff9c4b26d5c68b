"""Stolen keys: whoever has all that members' machines hold can sign no record of the past (SPEC U6)."""

import dataclasses
from itertools import pairwise
from unittest.mock import patch

import msgspec
import pytest

from tests.protocol.scripted_world import FIRST_LYING_STEP, LiarScript, WorldRun, peer_ids, plan, run_world
from troth.crypto import Identity, PeerId, Slot, blob_digest, derive
from troth.protocol.core.records import RecordKeys, StepRecord, encode_record, record_bytes_to_sign
from troth.protocol.core.roster import Roster
from troth.protocol.history import unsigned
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Commit, Message
from troth.protocol.wire.primitives import Primitives
from troth.workshop.chaos.world import Stage

TOOLS = Primitives()
STEPS, EVERY = 15, 5


class _Machines:
    """A run whose machines a thief can look into when it has ended."""

    def __init__(self, every: int = EVERY) -> None:
        self.rings: list[RecordKeys] = []
        made = Stage.record_keys

        def kept(stage: Stage, number: int, lost: int = 0) -> RecordKeys | None:
            ring = made(stage, number, lost)
            self.rings += [] if ring is None else [ring]
            return ring

        with patch.object(Stage, "record_keys", kept):
            self.seen: WorldRun = run_world(dataclasses.replace(plan(liars=(), steps=STEPS), rekey_every=every))
        self.world = self.seen.check_promises().world
        self.founders = [Identity.from_secret(derive(1, "identity", number)) for number in range(5)]
        self.rosters = [Roster.founding(self.world.run), *(one.state.roster for one in self.world.witness)]

    def forged(self, record: StepRecord, roster: Roster) -> CertifiedRecord:
        """Another record of this step, signed with every key that is left."""
        raw = encode_record(msgspec.structs.replace(record, spread=record.spread + 1.0))
        signatures = {}
        for founder in self.founders:
            key, digest = roster.signers[founder.peer], blob_digest(raw)
            message = record_bytes_to_sign(self.world.run.id, record.step, founder.peer, digest)
            ring = next((ring for ring in self.rings if key in ring.held), None)
            if ring is not None or key == founder.peer:
                signed = founder.sign(message) if ring is None else ring.sign(key, message)
                signatures[bytes(founder.peer)] = bytes(signed)
        return CertifiedRecord(raw, signatures)

    def rewritable(self) -> list[int]:
        """Steps of which a thief can make another record that a quorum seems to have signed."""
        steps = zip(self.world.witness, self.rosters, strict=False)
        return [
            outcome.record.step
            for outcome, roster in steps
            if unsigned(self.world.run, self.forged(outcome.record, roster), outcome.record, roster, TOOLS) is None
        ]


@pytest.mark.long
def test_all_keys_that_are_left_sign_nothing_but_the_first_and_the_last_records() -> None:
    """[U6] The first record is signed with the founders' own keys, and the last ones with those in use."""
    machines = _Machines()
    changes = [one.record.step for one in machines.world.witness if one.record.rekeyed]
    assert changes[:3] == [0, EVERY, 2 * EVERY]
    assert all(len(machines.world.witness[step].record.rekeyed) == 5 for step in changes), "all in one step"
    assert machines.rewritable() == [0, *range(changes[-1] + 1, STEPS)]
    assert {len(ring.held) for ring in machines.rings} == {1}


@pytest.mark.long
def test_without_changes_of_keys_everything_could_be_signed_again() -> None:
    """Else the test above could not fail."""
    assert _Machines(every=0).rewritable() == list(range(STEPS))


@pytest.mark.long
def test_every_record_is_signed_with_the_keys_of_its_step() -> None:
    """[U2, U6] And with no others: neither earlier nor later ones, nor the members' own."""
    machines = _Machines()
    for before, (outcome, after) in zip(machines.rosters, pairwise(machines.world.witness), strict=False):
        certificate = {bytes(p): bytes(s) for p, s in after.certificate.items()}
        signed = CertifiedRecord(encode_record(outcome.record), certificate)
        fits = [
            unsigned(machines.world.run, signed, outcome.record, roster, TOOLS) is None for roster in machines.rosters
        ]
        assert unsigned(machines.world.run, signed, outcome.record, before, TOOLS) is None
        assert fits == [roster.signers == before.signers for roster in machines.rosters]


@pytest.mark.long
@pytest.mark.parametrize("stolen", [5, 3, 2])
def test_founders_that_began_with_record_keys_leave_no_key_to_begin_again_with(stolen: int) -> None:
    """[U6] Their own keys, however many are stolen, sign no first record."""
    machines = _Machines()
    first, run = machines.world.witness[0].record, machines.world.run
    keys = {
        founder.peer: Identity.from_secret(derive(1, "first", k)).peer for k, founder in enumerate(machines.founders)
    }
    named = dataclasses.replace(run, record_keys=tuple(sorted(keys.items())))
    thieves = machines.founders[:stolen]
    raw = encode_record(first)
    signatures = {
        bytes(one.peer): bytes(one.sign(record_bytes_to_sign(named.id, 0, one.peer, blob_digest(raw))))
        for one in thieves
    }
    forged = CertifiedRecord(raw, signatures)
    assert unsigned(named, forged, first, Roster.founding(named), TOOLS) is not None
    plain = dataclasses.replace(Roster.founding(named), record_keys=())
    assert (unsigned(named, forged, first, plain, TOOLS) is None) == (stolen >= plain.quorum)


# Liars


class _NamesKey(LiarScript):
    """Names a record key in each of its Commits."""

    def __init__(self, key: PeerId) -> None:
        self._key = key

    def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
        lies = isinstance(message, Commit) and slot.step >= FIRST_LYING_STEP
        return msgspec.structs.replace(message, record_key=self._key) if lies else message


def test_a_key_that_is_none_or_comes_too_often_costs_the_step() -> None:
    """[U6, N1]"""
    everyone = peer_ids(1, 5)
    for key, leaves in ((PeerId(bytes(32)), FIRST_LYING_STEP), (everyone[1], FIRST_LYING_STEP + 1)):
        seen = run_world(plan(steps=8), _NamesKey(key)).check_promises()
        assert [0] in seen.named("absent").values()
        assert min(seen.named("absent")) == leaves
