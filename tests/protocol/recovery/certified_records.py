"""Certified records of a few steps, and a member that is behind and is shown them."""

import dataclasses
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any, cast

import msgspec

from tests.protocol.returning_members import IDENTITIES
from tests.protocol.scripted_world import plan, run_world
from troth.crypto import Digest, Identity, PeerId, Signature, blob_digest, derive
from troth.protocol.core.records import decode_record, encode_record, record_bytes_to_sign
from troth.protocol.core.run import Run
from troth.protocol.core.state import Peer, State
from troth.protocol.recovery.following import Changes
from troth.protocol.recovery.ledger import Known, Ledger, Shown
from troth.protocol.recovery.restart import be_ready, tip_of
from troth.protocol.wire.frames import CertifiedRecord, RestartCertificate, SyncShown
from troth.protocol.wire.primitives import Primitives


@cache
def past_steps(content_every: int = 1) -> tuple[Run, tuple[CertifiedRecord, ...], dict[PeerId, Identity]]:
    """Certified records of a few steps among five."""
    world = run_world(dataclasses.replace(plan(liars=(), steps=6), content_every=content_every)).world
    certified = tuple(
        CertifiedRecord(encode_record(made.record), {bytes(p): bytes(s) for p, s in after.certificate.items()})
        for made, after in pairwise(world.witness)
    )
    everyone = [Identity.from_secret(derive(1, "identity", number)) for number in range(5)]
    return world.run, certified, {identity.peer: identity for identity in everyone}


def signed_again(
    signed: CertifiedRecord, signers: Iterable[Identity], run: Run | None = None, **changes: Any
) -> CertifiedRecord:
    """The record with changes, signed again by these."""
    run = run or past_steps()[0]
    record = msgspec.structs.replace(decode_record(signed.record), **changes)
    raw = encode_record(record)
    digest = blob_digest(raw)
    return CertifiedRecord(
        raw, {who.peer: who.sign(record_bytes_to_sign(run.id, record.step, who.peer, digest)) for who in signers}
    )


class MemberBehind:
    """A member that knows nothing yet; two others who wait ahead of it show it three records and then two more.

    What it knows is in its ledger.
    """

    def __init__(self, tools: Primitives | None = None) -> None:
        self.run, self.shown, self.who = past_steps()
        self.time, self.written = 0.0, list[CertifiedRecord]()
        records = [decode_record(signed.record) for signed in self.shown]
        self.first: State[Any] = State.first(self.run, "first", Digest(records[0].state_before))
        peer: Any = Peer(
            IDENTITIES[0], self.run, cast(Any, None), cast(Any, None), cast(Any, None), tools or Primitives()
        )
        self.ledger: Ledger[Any] = Ledger(peer, Known(self.first), self.written.extend, lambda _record: None)

    def shows(self, *certified: CertifiedRecord, begun: RestartCertificate | None = None) -> Shown[Any] | None:
        return self.ledger.examine(SyncShown(certified, begun=begun))

    def borrow(self, *certified: CertifiedRecord) -> None:
        shown = self.shows(*certified)
        assert shown is not None
        self.ledger.borrow(shown, self.time)

    def complete(self) -> None:
        self.ledger.complete("last")

    def give_up_borrowing(self) -> None:
        self.ledger.give_up_borrowing(self.time, 30.0)

    def certify(self, signed: CertifiedRecord) -> None:
        """Note the signatures under a record."""
        signatures = {PeerId(peer): Signature(said) for peer, said in signed.signatures.items()}
        self.ledger.certify(decode_record(signed.record), signatures)


def member_after(count: int) -> MemberBehind:
    """A member that has followed so many records, and has the model; its last state and the one before are here."""
    behind = MemberBehind()
    shown = behind.shows(*behind.shown[:count])
    assert shown is not None
    behind.ledger.adopt(shown, "last")
    behind.written.clear()
    return behind


def made_again(
    behind: MemberBehind, signed: CertifiedRecord, incarnation: int, **changes: Any
) -> tuple[CertifiedRecord, RestartCertificate]:
    """Another record in place of the last one, and the proof that a restart made it."""
    earlier = behind.ledger.earlier
    assert earlier is not None
    tip = tip_of(behind.run, earlier, behind.ledger.model_of(earlier))
    ready: dict[bytes, Any] = {peer: be_ready(tip, incarnation, who, 3) for peer, who in behind.who.items()}
    again = signed_again(signed, behind.who.values(), incarnation=incarnation, **changes)
    return again, RestartCertificate(tip.step, tip.digest, incarnation, ready)


def led_by(changes: Changes, shown: Iterable[CertifiedRecord], tools: Primitives) -> Changes:
    """These and those of the changes shown that continue them, up to the first that does not."""
    for signed in shown:
        record = changes.opened(signed, tools)
        if record is None or not record.changes_roster:
            break
        changes = changes.with_change(signed, record, tools)
    return changes
