"""One step at a member: seeds, coins, parts, aggregates, signatures, too few contributors."""

import dataclasses
from typing import Any

import pytest

from tests.protocol.small_runs import SMALL, last_audit_record, wrap_channel
from troth.crypto import Digest, Identity, PeerId, Slot
from troth.protocol.core.channel import AttemptView, Channel, Exchange, ForwardingChannel, Gather, Scatter
from troth.protocol.core.parts import ProvenPart
from troth.protocol.core.records import decode_record
from troth.protocol.core.roles import NO_PENDING_AUDITS, PendingAudits, combine, draw_roles, first_randomness
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import LeftOutError
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Commit, Malformed, Phase
from troth.protocol.wire.phases import seal
from troth.workshop.simulation import ProtocolSimulation
from troth.workshop.simulation.primitives import MemoPrimitives


def test_seeds_come_from_the_draw_before_last_and_roles_from_the_last(attacked: ProtocolSimulation) -> None:
    """[R2, R3] So that a gradient can be computed before the roles are known, and nobody chooses either."""
    records = [decode_record(raw) for raw in attacked.trace]
    first, before = first_randomness(attacked.run)
    drawn = [before, first, *(record.randomness for record in records)]
    for t, record in enumerate(records[:-1]):  # nobody contributes to the closing step
        assert record.seed_randomness == drawn[t]
        due = PendingAudits.after(records[t - 1]) if t else NO_PENDING_AUDITS
        banned = tuple(sorted(PeerId(peer) for earlier in records[:t] for peer in earlier.banned))
        roster = Roster(tuple(PeerId(peer) for peer in record.members), banned)
        roles = draw_roles(attacked.run, roster, Digest(drawn[t + 1]), due)
        assert sorted(roles.owners) == sorted(record.contributors)


def test_both_coins_of_everyone_are_in_what_they_draw(attacked: ProtocolSimulation) -> None:
    """[R1, A4, C2] Recomputed from the members' secrets: coin A gives the projections, coin B the roles."""
    kept = last_audit_record(attacked)
    record = decode_record(attacked.trace[kept.step])
    coins = {PeerId(m): attacked.peers[PeerId(m)].entropy.coins(kept.step, 0) for m in record.members}
    assert kept.projection_key == combine("projections", kept.step, 0, {peer: c.a for peer, c in coins.items()})
    assert record.randomness == combine("roles", kept.step, 0, {peer: c.b for peer, c in coins.items()})
    assert len({secret for c in coins.values() for secret in (c.a, c.b)}) == 2 * len(coins)
    entropy = attacked.peers[attacked.honest[0]].entropy
    assert entropy.coins(3, 0) != entropy.coins(4, 0)


class _Tampering(ForwardingChannel):
    """Changes what one member receives."""

    def __init__(self, inner: Channel, what: str, me: PeerId) -> None:
        super().__init__(inner)
        self._what, self._me = what, me

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        came = await super().exchange(slot, blobs, view)
        match blobs, self._what:
            case Scatter(), "part":
                return {
                    part: {
                        peer: p if peer == self._me else ProvenPart(Blob(bytes(len(p.blob))), p.path)
                        for peer, p in proven_parts.items()
                    }
                    for part, proven_parts in came.items()
                }
            case Gather(), "aggregate":
                return {part: Blob(blob.view[4:]) for part, blob in came.items()}
        return came


def _tampered(what: str) -> tuple[ProtocolSimulation, PeerId]:
    """A calm run of seven, one of whom receives something else than was sent, from the first step on."""
    simulation = ProtocolSimulation(dataclasses.replace(SMALL, byzantine=0, steps=6, evaluate_every=6))
    victim = simulation.honest[0]
    wrap_channel(simulation, victim, lambda channel: _Tampering(channel, what, victim))
    for _ in simulation.steps():
        pass
    return simulation, victim


def test_a_part_that_does_not_fit_did_not_come() -> None:
    """[C3, N5] The owner uses none of them. It misses so many that it must be its own link: it leaves, the others go on."""
    simulation, victim = _tampered("part")
    first = decode_record(simulation.trace[0])
    assert set(first.absent) == {victim}
    assert set(first.contributors) == set(first.members) - {victim}
    assert simulation.gone.keys() == {victim}
    assert all(isinstance(why, LeftOutError) for why in simulation.gone.values())
    later = [decode_record(raw) for raw in simulation.trace[1:]]  # the closing step too
    assert all(record.members == first.contributors and not record.absent for record in later)
    assert (len(simulation.trace), simulation.bans, simulation.trials) == (7, [], 0)
    assert simulation.agreement


def test_an_aggregate_that_does_not_fit_is_not_used() -> None:
    """[A3, N4] Most hold the right one: a member that it does not reach leaves, and never goes on with another."""
    simulation, victim = _tampered("aggregate")
    assert simulation.gone.keys() == {victim}
    assert isinstance(simulation.gone[victim], LeftOutError)
    assert simulation.states[victim].step == 0
    first = decode_record(simulation.trace[0])
    assert first.absent == (victim,)
    assert victim not in first.contributors
    assert (len(simulation.trace), simulation.bans, simulation.trials) == (7, [], 0)
    assert simulation.agreement


def test_audit_records_are_of_the_last_two_steps(attacked: ProtocolSimulation) -> None:
    """[K1] Where no audit is owed; nothing in the state leads back to an older step."""
    state = attacked.states[attacked.honest[0]]
    assert state.closed
    assert sorted(state.audit_records) == [state.step - 3, state.step - 2]  # the closing step has nothing to keep
    for kept in state.audit_records.values():
        inside = [getattr(kept, f.name) for f in dataclasses.fields(kept)]
        assert not any(isinstance(value, (type(kept), type(state))) for value in inside)


def test_answers_are_remembered_by_the_bytes_of_the_question() -> None:
    """[S1] Another envelope, slot, sender or coin is another question."""
    tools, identity, other = MemoPrimitives(), Identity.generate(), Identity.generate()
    context, there = (Slot(Digest(bytes(32)), step, Phase.COMMIT) for step in (1, 2))
    message = Commit(None, b"a" * 32, b"b" * 32)
    good, bad = seal(identity, context, message), seal(other, context, message)
    assert not isinstance(tools.open(context, identity.peer, good), Malformed)
    assert isinstance(tools.open(context, identity.peer, bad), Malformed)
    assert isinstance(tools.open(there, identity.peer, good), Malformed)
    assert isinstance(tools.open(context, other.peer, good), Malformed)
    commitments = {
        tools.coin_commitment(coin, slot, owner, which)
        for coin in (b"a" * 32, b"b" * 32)
        for slot in (context, there)
        for owner in (identity.peer, other.peer)
        for which in "AB"
    }
    assert len(commitments) == 16
    assert tools.digest(b"a") != tools.digest(b"b")
    with pytest.raises(ValueError, match="read-only"):
        tools.projection(Digest(bytes(32)), 2, 8)[0, 0] = 0
