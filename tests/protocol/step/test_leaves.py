"""A drawn leaf of every part is judged number by number in every step. [V4]"""

import dataclasses
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.protocol.altered_runs import CALM, AlteredRun
from tests.protocol.channel_wrappers import Change
from tests.protocol.small_runs import finished, run_on, wrap_channel
from troth.clip.blocks import BLOCK, INT8, INT16, Code
from troth.crypto import LEAF_BYTES, Digest, PeerId, Seed, Slot, derive, merkle_tree
from troth.protocol.core.channel import AttemptView, Exchange, Forward, ForwardingChannel
from troth.protocol.core.parts import CommittedParts, ProvenPart, commit_parts, part_bounds
from troth.protocol.core.records import StepRecord, decode_record
from troth.protocol.step import audits, leaves, step
from troth.protocol.step.attempt import StepContext
from troth.protocol.step.audits import suspicious_parts
from troth.protocol.step.leaves import LeafDraw, LeafFindings, draw_leaves, drawn_leaves, show_leaves
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Accuse, ChargeKind, GuiltySide, Message, Report, ReportNumbers, Vote
from troth.workshop.attacks import make_attack
from troth.workshop.attacks.base import Collusion
from troth.workshop.attacks.codes import BendingOwner
from troth.workshop.simulation import ProtocolSimulation

CODED = dataclasses.replace(CALM, code="int8", task=f"quadratic:dimension={8 * BLOCK - 3}")
CODE = Code.known["int8"]


def records(seen: ProtocolSimulation) -> list[StepRecord]:
    return [decode_record(raw) for raw in seen.trace]


def bent(monkeypatch: pytest.MonkeyPatch, steps: float) -> list[int]:
    """One owner, once, adds so many steps of the code to one number of its aggregate."""
    calls: list[int] = []
    _right: Any = step.aggregate

    def aggregate(rows_PD: Tensor, tau: float, code: Code) -> Tensor:
        calls.append(len(calls))
        center_D: Tensor = _right(rows_PD, tau, code)
        if len(calls) == 20:
            quanta_D = INT16.quanta(center_D)
            least = int(center_D.abs().argmin())  # the block's exponent stays
            center_D[least] += steps * quanta_D[least]
        return center_D

    monkeypatch.setattr(step, "aggregate", aggregate)
    return calls


def test_an_owner_that_bends_one_number_within_its_rounding_is_banned(monkeypatch: pytest.MonkeyPatch) -> None:
    """[V4, T6] And anyone sees from the evidence that it was right."""
    bent(monkeypatch, 3)
    seen = finished(CODED)
    assert len(seen.bans) == 1
    (judgement,) = [j for record in records(seen) for j in record.judgements]
    assert (judgement.kind, judgement.verdict) == (ChargeKind.AGGREGATE, GuiltySide.ACCUSED)
    assert not any(set(record.struck) - {judgement.target} for record in records(seen)), "who found it is not struck"
    assert seen.agreement


def test_the_numbers_of_v2_do_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above can fail."""
    bent(monkeypatch, 3)

    async def blind(*_: Any) -> LeafFindings:
        return LeafFindings()

    monkeypatch.setattr(step, "look_at_leaves", blind)
    seen = finished(CODED)
    assert not seen.bans
    assert not any(record.judgements for record in records(seen))


def test_a_false_accusation_is_struck_and_bans_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """[V4, N3] A dispute costs as much as a step, so that nobody may ask for many."""
    liar = ProtocolSimulation(CODED).run.founders[0]
    right = leaves._is_wrong
    monkeypatch.setattr(
        leaves, "_is_wrong", lambda attempt, *about: attempt.context.peer.me == liar or right(attempt, *about)
    )
    seen = finished(CODED)
    assert not seen.bans
    struck = [record for record in records(seen) if record.struck]
    assert len(struck) >= 2
    assert {peer for record in struck for peer in record.struck} == {liar}
    assert any(liar in record.expelled for record in records(seen)), "three strikes"
    assert all(record.updated for record in records(seen) if not record.closing)


def test_only_the_member_drawn_for_a_part_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """[V4, T1] Else one liar could dispute every part of every step."""
    liar, right = ProtocolSimulation(CODED).run.founders[0], leaves.look_at_leaves

    async def all_others(attempt: Any, reduced: Any, reported: Any) -> LeafFindings:
        found = await right(attempt, reduced, reported)
        if attempt.context.peer.me != liar:
            return found
        draws = drawn_leaves(attempt, reduced.projection_key)
        return LeafFindings(frozenset(draw.part for draw in draws if liar not in draw.checkers))

    monkeypatch.setattr(step, "look_at_leaves", all_others)
    seen = finished(CODED)
    assert not any(record.judgements or record.struck for record in records(seen))


def test_where_no_quorum_is_left_a_false_accusation_strikes_no_honest_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """[V4, N3] One honest machine stops before the vote, the liar does not vote: three honest of four would be a quorum."""
    simulation = AlteredRun(dataclasses.replace(CODED, peers=4, byzantine=1, attack_start=5))
    (liar,) = (peer for peer in simulation.run.founders if simulation.numbers[peer] in simulation.byzantine)
    gone = next(peer for peer in simulation.run.founders if peer != liar)
    right = leaves._is_wrong
    monkeypatch.setattr(
        leaves, "_is_wrong", lambda attempt, *about: attempt.context.peer.me == liar or right(attempt, *about)
    )
    simulation.alter([liar, gone], lambda _, message: Vote(()) if isinstance(message, Vote) else message)
    simulation.play()
    struck = {peer for record in records(simulation) for peer in record.struck}
    assert struck == {liar}


def test_reports_that_are_off_by_too_little_to_be_banned_for_mislead_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """[V4, D2] Rows of two liars cancel in a block in which all others are zero: there a share of 10⁻¹⁰ is many quanta."""
    simulation = AlteredRun(CODED)
    liars, right = simulation.run.founders[:2], step.committed_parts
    signs = dict(zip(liars, (1.0, -1.0), strict=True))
    dark, own = slice(BLOCK, 2 * BLOCK), commit_parts

    def darkened(gradient_D: Tensor, *about: Any) -> CommittedParts:
        gradient_D = gradient_D.clone()
        gradient_D[dark] = 0
        return own(gradient_D, *about)

    def lying(context: StepContext[Any], gradient_D: Tensor) -> CommittedParts:
        if context.peer.me not in liars:
            return right(context, gradient_D)
        row_D = torch.zeros_like(gradient_D)
        row_D[dark.start] = 1e9 * signs[context.peer.me]
        return own(row_D, context.roles.bounds, context.peer.tools, context.peer.code, Seed(bytes(32)))

    monkeypatch.setattr(step, "commit_parts", darkened)
    monkeypatch.setattr(audits, "commit_parts", darkened)
    monkeypatch.setattr(step, "committed_parts", lying)

    def misreport(peer: PeerId) -> Change:
        def change(_: Slot, message: Message) -> Message:
            if not isinstance(message, Report) or not message.numbers:
                return message
            parts = len(message.numbers) // 8 // (2 + simulation.run.parameters.projections)
            told = ReportNumbers.unpack(message.numbers, parts, simulation.run.parameters.projections)
            assert isinstance(told, ReportNumbers)
            norms_P = told.norms_P * (1 + signs[peer] * 5e-10)
            return msgspec.structs.replace(
                message, numbers=ReportNumbers(told.lengths_P, norms_P, told.projections_PK).pack()
            )

        return change

    for liar in liars:
        simulation.alter([liar], misreport(liar))
    simulation.play()
    banned = {ban.peer for ban in simulation.bans}
    assert banned, "for a gradient"
    assert banned <= {simulation.numbers[liar] for liar in liars}
    assert not {peer for record in records(simulation) for peer in record.struck} - set(liars)


def test_after_a_dispute_over_an_aggregate_that_is_right_everyone_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """[R6, V2] Somebody's row may have made its rounding look wrong."""
    calls: list[int] = []

    def suspicious(*about: Any) -> set[int]:
        calls.append(len(calls))
        return {0} if CODED.peers <= len(calls) - 1 < 2 * CODED.peers else suspicious_parts(*about)

    monkeypatch.setattr("troth.protocol.step.disputes.suspicious_parts", suspicious)
    simulation = AlteredRun(CODED).play()
    disputed = [record.step for record in records(simulation) if record.judgements]
    assert disputed == [1]
    assert not simulation.bans
    assert not any(record.struck for record in records(simulation))
    validators = [outcome.roles.validators for step in simulation.outcomes for outcome in list(step.values())[:1]]
    assert [bool(drawn) for drawn in validators[:4]] == [False, True, False, True], "none in step 2"


class ShowsNoLeaf(ForwardingChannel):
    async def exchange(self, slot: Any, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Forward) and blobs.turn == 1:
            blobs = dataclasses.replace(blobs, parts={})
        return await super().exchange(slot, blobs, view)


class ShowsAnother(ForwardingChannel):
    """Shows zeros, with the hashes of the right leaf."""

    async def exchange(self, slot: Any, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Forward) and blobs.turn == 1:
            parts = {
                delivery: (
                    to,
                    ProvenPart(Blob(bytes(proven.blob.view[:32]) + bytes(len(proven.blob) - 32)), proven.path),
                )
                for delivery, (to, proven) in blobs.parts.items()
            }
            blobs = dataclasses.replace(blobs, parts=parts)
        return await super().exchange(slot, blobs, view)


class ShowsOneForAll(ForwardingChannel):
    """Shows the leaf of one contributor as those of all."""

    async def exchange(self, slot: Any, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Forward) and blobs.turn == 1 and blobs.parts:
            _, first = next(iter(blobs.parts.values()))
            blobs = dataclasses.replace(blobs, parts={about: (to, first) for about, (to, _) in blobs.parts.items()})
        return await super().exchange(slot, blobs, view)


@pytest.mark.parametrize("channel", [ShowsNoLeaf, ShowsAnother, ShowsOneForAll])
def test_who_shows_no_leaf_is_in_a_link_dispute_with_whoever_waits_for_it(channel: type[ForwardingChannel]) -> None:
    """[V4, F1, F3] So that it can do so once with each; with half of the members it is expelled."""
    simulation = ProtocolSimulation(CODED)
    liar = simulation.run.founders[0]
    wrap_channel(simulation, liar, channel)
    for _ in simulation.steps():
        pass
    seen = [decode_record(raw) for raw in simulation.trace]
    assert not any(record.banned or record.struck for record in seen)
    pairs = [pair for record in seen for pair in record.link_disputes]
    assert len(pairs) >= 2
    assert all(liar in pair for pair in pairs)
    assert len(pairs) == len(set(pairs))
    assert any(liar in record.expelled for record in seen)


LARGE = dataclasses.replace(  # seven liars who do nothing by themselves
    CODED, task=f"quadratic:dimension={16 * BLOCK - 3}", peers=16, byzantine=7, attack="silent-validation", steps=12
)


@pytest.mark.long
@pytest.mark.parametrize(("most", "steps"), [(4, {4, 5}), (1, {8, 9})])
def test_an_owner_that_hides_what_it_bent_from_everyone_is_out_after_four_steps(
    monkeypatch: pytest.MonkeyPatch, most: int, steps: set[int]
) -> None:
    """[V4, F3] To one member only, it is in disputes with half of all after eight; one more where it validates."""
    monkeypatch.setattr(leaves, "MOST_CHECKERS", most)
    simulation = ProtocolSimulation(LARGE)
    liar = simulation.honest[0]
    alone = Collusion(make_attack("bend:hide=true"), frozenset({liar}), simulation.run, lambda _: True)
    wrap_channel(simulation, liar, lambda channel: BendingOwner(cast(Any, channel), liar, alone))
    seen = records(run_on(simulation))
    assert [record.step + 1 in steps for record in seen if record.expelled] == [True]
    assert {peer for record in seen for peer in record.expelled} == {liar}
    assert not any(set(record.struck) - {liar} for record in seen)
    assert all(liar in pair for record in seen for pair in record.link_disputes)


@pytest.mark.long
def test_an_honest_owner_that_seven_liars_name_shows_more_leaves_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """[V4, F3, N3] All in one step: no liar is drawn for its leaf any more. One more dispute, and it would be out, as ever."""
    simulation, asked = AlteredRun(LARGE), dict[int, set[PeerId]]()
    owner, liars = simulation.honest[0], set(simulation.run.founders) - set(simulation.honest)

    def name(slot: Slot, message: Message) -> Message:
        return (
            msgspec.structs.replace(message, unheard=(owner,)) if isinstance(message, Accuse) and slot.step else message
        )

    simulation.alter(liars, name)
    drawn = leaves.drawn_leaves

    def noted(attempt: Any, key: Digest) -> tuple[LeafDraw, ...]:
        draws = drawn(attempt, key)
        found = {peer for draw in draws if attempt.owners[draw.part] == owner for peer in draw.checkers}
        asked[attempt.context.state.step] = found
        return draws

    monkeypatch.setattr(leaves, "drawn_leaves", noted)
    seen = records(simulation.play())
    assert {pair for record in seen for pair in record.link_disputes} == {
        (min(owner, liar), max(owner, liar)) for liar in liars
    }
    assert {len(found) for step, found in asked.items() if step < 2} <= {0, 1}
    assert {len(found) for step, found in asked.items() if step >= 2} <= {0, leaves.MOST_CHECKERS}
    assert not any(found & liars for step, found in asked.items() if step >= 2)
    assert not any({*record.struck, *record.slowed, *record.expelled} & set(simulation.honest) for record in seen)
    assert all(record.updated for record in seen if not record.closing)


def test_all_who_accuse_an_owner_falsely_are_struck_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """[V4, N3] And the honest owner never, however many liars are drawn for its leaf."""
    simulation = AlteredRun(dataclasses.replace(CODED, byzantine=2, attack="silent-validation"))
    owner, liars = simulation.honest[0], tuple(sorted(set(simulation.run.founders) - set(simulation.honest)))
    right, drawn = leaves._is_wrong, leaves.draw_leaves

    def with_liars(key: Digest, owners: Any, *about: Any) -> list[LeafDraw]:
        draws = drawn(key, owners, *about)
        return [dataclasses.replace(one, checkers=liars) if owners[one.part] == owner else one for one in draws]

    def lying(attempt: Any, draw: LeafDraw, *about: Any) -> bool:
        if attempt.context.peer.me in liars:
            return bool(attempt.owners[draw.part] == owner)
        return right(attempt, draw, *about)

    monkeypatch.setattr(leaves, "draw_leaves", with_liars)
    monkeypatch.setattr(leaves, "_is_wrong", lying)
    seen = records(simulation.play())
    assert [set(record.struck) for record in seen if record.struck] == [set(liars)] * 3
    assert [set(record.expelled) for record in seen if record.expelled] == [set(liars)]
    assert all(record.updated for record in seen if not record.closing)


def test_a_malformed_part_is_zeros_for_whoever_looks_at_a_leaf_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """[C4, V4] Its sender is audited, and banned; no owner is accused over it, and nobody struck."""
    liar, right = ProtocolSimulation(CODED).run.founders[0], step.committed_parts

    def malformed(context: StepContext[Any], gradient_D: Tensor) -> CommittedParts:
        parts = right(context, gradient_D)
        if context.peer.me != liar or context.state.step != 2:
            return parts
        blobs = [proven.blob for proven in parts.proven_parts]
        raw = bytearray(blobs[0].view)
        raw[1] = 0x80  # −128
        blobs[0] = Blob(bytes(raw))
        hashes = [
            context.peer.tools.leaf(part, stop - start, blobs[part].digest, INT8)
            for part, (start, stop) in enumerate(pairwise(parts.bounds))
        ]
        root, paths = merkle_tree(hashes)
        numbers_D = parts.numbers_D.clone()
        numbers_D[: parts.bounds[1]] = 0
        return CommittedParts(tuple(map(ProvenPart, blobs, paths)), root, parts.bounds, numbers_D)

    monkeypatch.setattr(step, "committed_parts", malformed)
    seen = finished(CODED)
    assert {ban.peer for ban in seen.bans} == {seen.numbers[liar]}
    judged = [j for record in records(seen) for j in record.judgements]
    assert {j.kind for j in judged} == {ChargeKind.GRADIENT}


def test_leaves_are_drawn_from_all_and_shown_with_hashes_that_do_not_depend_on_much() -> None:
    size = 3 * 256 * BLOCK + 100
    bounds, seed = part_bounds(size, 1, CODE), Seed(bytes(32))
    (proven,) = commit_parts(torch.randn(size), bounds, code=CODE, seed=seed).proven_parts
    contributor = PeerId(bytes(32))
    sizes = [len(show_leaves({contributor: proven}, leaf)[contributor].blob) for leaf in range(4)]
    assert sizes == [4 * 32 + LEAF_BYTES] * 3 + [4 * 32 + 101]


@pytest.fixture(scope="module")
def draws() -> list[tuple[PeerId, PeerId]]:
    """Owners and who looks at their part, in many draws."""
    simulation = ProtocolSimulation(CODED)
    peer = next(iter(simulation.peers.values()))
    found: list[tuple[PeerId, PeerId]] = []
    context = StepContext.at(peer, simulation.states[next(iter(simulation.states))])
    attempt: Any = type("", (), {})()
    attempt.context, attempt.owners, attempt.members = context, context.roles.owners, frozenset(simulation.run.founders)
    attempt.span = lambda part: (context.roles.bounds[part], context.roles.bounds[part + 1])
    for number in range(50):
        key = Digest(derive(number, "key"))
        found += [(attempt.owners[draw.part], one) for draw in drawn_leaves(attempt, key) for one in draw.checkers]
    return found


def test_nobody_looks_at_its_own_part_and_everybody_at_others(draws: list[tuple[PeerId, PeerId]]) -> None:
    assert all(owner != checker for owner, checker in draws)
    assert len({checker for _, checker in draws}) == CODED.peers


@given(st.lists(st.sets(st.integers(0, 8)), min_size=9, max_size=9), st.integers(0, 99))
def test_a_leaf_is_shown_to_one_more_for_each_dispute_of_its_owner(named: list[set[int]], number: int) -> None:
    """[V4, F2] All different, none of them cut off; at most four, and all who are left where those are fewer."""
    peers = [PeerId(bytes([number]) * 32) for number in range(9)]
    pairs = {(one, other) for one, others in enumerate(named) for other in others if one != other}
    links = {
        peer: frozenset(peers[b] for a, b in pairs | {(b, a) for a, b in pairs} if a == number)
        for number, peer in enumerate(peers)
    }
    bounds = part_bounds(9 * BLOCK, 9, CODE)
    draws = draw_leaves(Digest(derive(number, "key")), peers, bounds, INT8, frozenset(peers), links)
    shown = {peers[draw.part]: draw.checkers for draw in draws}
    for owner in peers:
        able, checkers = set(peers) - links[owner] - {owner}, shown.get(owner, ())
        assert len(set(checkers)) == len(checkers) == min(1 + len(links[owner]), len(able), leaves.MOST_CHECKERS)
        assert able.issuperset(checkers)


def test_nobody_looks_at_two_leaves_while_somebody_looks_at_none(draws: list[tuple[PeerId, PeerId]]) -> None:
    """[V4] A slow link that carries one in time may not carry four, and who is late has a dispute with honest owners."""
    parts = len(draws) // 50
    for first in range(0, len(draws), parts):
        checkers = [checker for _, checker in draws[first : first + parts]]
        assert len(set(checkers)) >= parts - 1, "the last part's owner may be the only one left"
