"""Records that members keep to prove bans: signed by a quorum, in an unbroken line from the founders."""

from itertools import pairwise

import msgspec

from troth.crypto import PeerId, Signature
from troth.protocol.core.records import decode_record, encode_record, right_signers
from troth.workshop.simulation import ProtocolSimulation


def test_a_quorum_signs_the_record_of_every_step(attacked: ProtocolSimulation) -> None:
    """[U2] With the Commits of the next; and a signature counts for this record only."""
    tools, run = attacked.tools, attacked.run
    for last in attacked.history.last:
        raw, keys = encode_record(last.seen.record), {PeerId(k): PeerId(k) for k in last.seen.record.members}
        signed = {PeerId(peer): Signature(signature) for peer, signature in last.signed.signatures.items()}
        step = last.seen.record.step
        assert right_signers(run.id, step, raw, keys, signed, tools).keys() == set(keys)
        other = encode_record(msgspec.structs.replace(last.seen.record, updated=not last.seen.record.updated))
        assert right_signers(run.id, step, other, keys, signed, tools) == {}
        assert right_signers(run.id, step + 1, raw, keys, signed, tools) == {}
        fewer = dict(list(keys.items())[1:])
        assert right_signers(run.id, step, raw, fewer, signed, tools).keys() == set(fewer)
        swapped = dict(zip(keys, reversed(keys.values()), strict=True))
        assert len(right_signers(run.id, step, raw, swapped, signed, tools)) <= 1, "each with its own key only"


def test_records_lead_from_the_founders_to_the_end(attacked: ProtocolSimulation) -> None:
    """[U2, T5] Each step's members are the last step's less its bans; each starts from the state the last one ended in."""
    records = [decode_record(raw) for raw in attacked.trace]
    assert records[0].members == attacked.run.founders
    for last, now in pairwise(records):
        assert now.members == tuple(member for member in last.members if member not in last.banned)
        assert now.state_before == last.state_after
        assert now.step == last.step + 1


def test_audit_records_suffice_to_audit(attacked: ProtocolSimulation) -> None:
    """[K1] The work of the last two steps: commitments, reports and the state they were made from."""
    state = attacked.states[attacked.honest[0]]
    assert len(state.audit_records) == 2
    for step, kept in state.audit_records.items():
        assert kept.step == step
        assert set(kept.commits) == set(kept.reports) == set(kept.contributors)
        assert kept.contributors == decode_record(attacked.trace[step]).contributors
