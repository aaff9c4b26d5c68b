"""Well-formed messages that are hostile, and silence at the worst moment: what none of our attacks does yet."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.protocol.altered_runs import CALM
from tests.protocol.small_runs import equals_trusted_server, kept_promises, records, run_on, wrap_channel
from tests.protocol.step.disturbed_step import DISTURBED_STEP, LYING, altering, calm_run, contributors_of
from troth.crypto import Identity, PeerId, Slot, blob_digest, derive
from troth.protocol.core.channel import AttemptView, Channel, Disclose, Exchange, ForwardingChannel, Said, Scatter
from troth.protocol.core.parts import ProvenPart
from troth.protocol.step.trials import heard_owners
from troth.protocol.wire.messages import (
    Accusation,
    Accuse,
    Announced,
    ChargeKind,
    Clip,
    Envelope,
    GuiltySide,
    Malformed,
    Message,
    Phase,
    Report,
    Vote,
)
from troth.protocol.wire.phases import decode, encode
from troth.protocol.wire.primitives import Primitives
from troth.workshop.simulation import ProtocolSimulation
from troth.workshop.simulation.exchange import DropOut, DroppingChannel


class _SendingAgain(ForwardingChannel):
    """In a later attempt it sends all its parts once more, to those who owned them in the first."""

    _first: Mapping[int, tuple[PeerId, ProvenPart]]

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Scatter):
            self._first = blobs.parts if slot.attempt == 0 else self._first
            blobs = dataclasses.replace(blobs, parts={**self._first, **blobs.parts})
        return await super().exchange(slot, blobs, view)


class _LayingNothingOpen(ForwardingChannel):
    """Where parts are disputed, it offers nothing in the name of every owner."""

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Disclose):
            blobs = dataclasses.replace(blobs, mine={part: {} for part, _ in blobs.wanted})
        return await super().exchange(slot, blobs, view)


def test_a_coin_b_that_does_not_fit_counts_as_none() -> None:
    """[N3, R6] Struck, still a member; what comes with it is not heard, and everyone audits next."""
    simulation, contributors = calm_run()
    odd, framed = contributors[0], contributors[1]

    def say(message: Message) -> Message:
        lie = Accusation(framed, ChargeKind.REPORT, DISTURBED_STEP, 0)
        if not isinstance(message, Accuse):
            return message
        return msgspec.structs.replace(message, accusations=(lie,), coin=bytes(32))

    wrap_channel(simulation, odd, altering(say))
    run_on(simulation)
    assert kept_promises(simulation) == {}
    by_step = records(simulation)
    assert (by_step[DISTURBED_STEP].struck, by_step[DISTURBED_STEP].judgements, by_step[DISTURBED_STEP].absent) == (
        (odd,),
        (),
        (),
    )
    assert odd in by_step[DISTURBED_STEP].contributors
    assert by_step[DISTURBED_STEP + 1].contributors == by_step[DISTURBED_STEP + 1].members
    assert odd in by_step[DISTURBED_STEP + 2].members


@pytest.mark.parametrize("named", [1, 2, None], ids=["one", "two", "all"])
def test_an_owner_that_says_it_did_not_get_parts_leaves_alone(named: int | None) -> None:
    """[N5] The part is handed round, most have it, and the owner that still misses it is out: nobody goes with it."""
    simulation, contributors = calm_run()
    liar = contributors[0]
    missing = tuple(contributors[1:][:named])

    def say(message: Message) -> Message:
        if not isinstance(message, Clip):
            return message
        return msgspec.structs.replace(message, centers=(), missing=missing)

    wrap_channel(simulation, liar, altering(say))
    run_on(simulation)
    assert kept_promises(simulation) == {}
    record = records(simulation)[DISTURBED_STEP]
    assert set(record.absent) == {liar}
    assert len(records(simulation)) == 6
    assert equals_trusted_server(simulation)


class _Withholding(ForwardingChannel):
    """Sends one owner nothing; and, if stubborn, hands nothing round either."""

    def __init__(self, inner: Channel, victim: PeerId, *, stubborn: bool) -> None:
        super().__init__(inner)
        self._victim, self._stubborn = victim, stubborn

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        match blobs:
            case Scatter(parts=parts) if slot.step == DISTURBED_STEP:
                kept = {part: sent for part, sent in parts.items() if sent[0] != self._victim}
                blobs = dataclasses.replace(blobs, parts=kept)
            case Disclose() if self._stubborn:
                blobs = dataclasses.replace(blobs, mine={})
        return await super().exchange(slot, blobs, view)


@pytest.mark.long
@pytest.mark.parametrize("stubborn", [False, True], ids=["hands it round", "keeps it"])
def test_a_contributor_that_sends_an_owner_nothing_hands_its_part_round_or_is_out(stubborn: bool) -> None:
    """[N5] The owner gets it from the others; where most do not get it, the contributor is out, and nobody else."""
    simulation, contributors = calm_run()
    withholding, victim = contributors[1], contributors[0]
    wrap_channel(simulation, withholding, partial(_Withholding, victim=victim, stubborn=stubborn))
    run_on(simulation)
    assert kept_promises(simulation) == {}
    record = records(simulation)[DISTURBED_STEP]
    assert set(record.absent) == ({withholding} if stubborn else set())
    assert simulation.attempts > len(simulation.trace), "it took another attempt"
    assert equals_trusted_server(simulation)


@pytest.mark.long
def test_an_owner_that_names_only_strangers_leaves_alone() -> None:
    """[N5] Members that it names must have contributed."""
    simulation, contributors = calm_run()
    validator = next(peer for peer in simulation.honest if peer not in contributors)
    stranger = Identity.from_secret(bytes(32)).peer
    for missing in ((), (stranger, validator)):
        simulation = ProtocolSimulation(CALM)

        def say(message: Message, missing: tuple[PeerId, ...] = missing) -> Message:
            changed = isinstance(message, Clip)
            return msgspec.structs.replace(message, centers=(), missing=missing) if changed else message

        wrap_channel(simulation, contributors[0], altering(say))
        run_on(simulation)
        assert kept_promises(simulation) == {}
        assert records(simulation)[DISTURBED_STEP].absent == (contributors[0],)


class _Inventing(ForwardingChannel):
    """Accuses somebody about its own part, in this step, and then lays nothing open: it would like another draw."""

    _reports: Mapping[PeerId, Announced]

    def __init__(self, inner: Channel, target: PeerId, part: int) -> None:
        super().__init__(inner)
        self._target, self._part = target, part

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        if isinstance(message, Accuse) and (slot.step, slot.attempt) == (DISTURBED_STEP, 0):
            digest = blob_digest(self._reports[self._target].envelope.payload)
            lie = Accusation(self._target, ChargeKind.REPORT, DISTURBED_STEP, self._part, digest)
            message = msgspec.structs.replace(message, accusations=(lie,))
        announced = await self._inner.announce(slot, message, view)
        if isinstance(message, Report):
            self._reports = announced
        return announced

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        nothing = dataclasses.replace(blobs, mine={}) if isinstance(blobs, Disclose) else blobs
        return await super().exchange(slot, nothing, view)


@pytest.mark.long
@pytest.mark.parametrize("strikes", [0, 2])
def test_a_second_draw_is_never_free(strikes: int) -> None:
    """[N3, R6, T6] The attempt is repeated without it, its coins decide nothing; but it is struck, so that everyone is audited in
    the next step, and for the third time it has to go for good."""
    simulation, contributors = calm_run()
    owner, target = contributors[0], contributors[1]
    wrap_channel(simulation, owner, partial(_Inventing, target=target, part=0))
    earlier = tuple((-k, owner) for k in range(1, strikes + 1))
    for peer, state in simulation.states.items():
        roster = dataclasses.replace(state.roster, strikes=earlier)
        simulation.states[peer] = dataclasses.replace(state, roster=roster)
    run_on(simulation)
    assert kept_promises(simulation) == {}
    record, following = records(simulation)[DISTURBED_STEP : DISTURBED_STEP + 2]
    assert {j.verdict for j in record.judgements if j.kind == ChargeKind.AGGREGATE} == {GuiltySide.WITHHELD}
    assert record.struck == (owner,)
    assert (record.absent, record.expelled) == (((), (owner,)) if strikes else ((owner,), ()))
    assert following.contributors == following.members, "everyone audits"
    assert simulation.attempts == 7 + 1
    assert equals_trusted_server(simulation)


def test_parts_that_are_sent_again_take_away_nothing_that_came() -> None:
    """[C3, N1] One liar vanishes, another sends its parts twice: nobody else loses anything by it."""
    scenario = dataclasses.replace(LYING, attack="vanish:after=reveal + sign-flip")
    simulation = ProtocolSimulation(scenario)
    vanisher, sender = (
        peer for number in simulation.byzantine for peer, n in simulation.numbers.items() if n == number
    )
    wrap_channel(simulation, sender, _SendingAgain)
    run_on(simulation)
    kept_promises(simulation)
    assert simulation.stalled is None
    assert records(simulation)[DISTURBED_STEP].absent == (vanisher,)


@pytest.mark.parametrize("seed", [6, 7])
def test_only_an_owner_lays_open_what_it_received(seed: int) -> None:
    """[T6] Else a liar that disputes a part could make its honest owner look as if it had nothing to show."""
    simulation = ProtocolSimulation(dataclasses.replace(LYING, attack="wrong-report", seed=seed))
    for peer in simulation.peers:
        if peer not in simulation.honest:
            wrap_channel(simulation, peer, _LayingNothingOpen)
    run_on(simulation)
    kept_promises(simulation)


@pytest.mark.parametrize("call", [6, 7, 8], ids=["Accuse", "lay open", "Vote"])
def test_an_owner_that_loses_power_before_a_trial_about_its_part_is_absent_and_not_banned(call: int) -> None:
    """[T6, N1, N3] A liar reports wrongly about part 0; its honest owner is gone before it can say or show anything."""
    scenario = dataclasses.replace(LYING, attack="wrong-report", seed=3)
    probe = run_on(ProtocolSimulation(scenario), lambda s: s.steps_done == DISTURBED_STEP)
    owner = contributors_of(probe)[0]
    assert owner in probe.honest
    simulation = ProtocolSimulation(scenario)
    wrap_channel(simulation, owner, partial(DroppingChannel, drop_out=DropOut(DISTURBED_STEP, call)))
    run_on(simulation)
    assert set(kept_promises(simulation)) == set(simulation.byzantine)
    assert simulation.absent == [simulation.numbers[owner]]


@pytest.mark.parametrize("members", [16, 40, 64, 200])
def test_an_honest_vote_is_a_message_however_many_are_accused(members: int) -> None:
    """[T3, M3] Owners may name every contributor. If as many as may lie do, the verdicts must still fit into a vote."""
    keys = tuple(sorted(Identity.from_secret(derive(0, "key", k)).peer for k in range(members)))
    owners, liars = keys[1:], keys[1 : members // 2]

    def naming_all(liar: PeerId) -> Announced:
        part = owners.index(liar)
        lies = tuple(
            Accusation(peer, ChargeKind.REPORT, DISTURBED_STEP, part, blob_digest(peer))
            for peer in owners
            if peer != liar
        )
        return Announced(liar, Accuse(lies, bytes(32)), Envelope(b"", bytes(64)))

    reports = {peer: Announced(peer, Report(b""), Envelope(peer, bytes(64))) for peer in owners}
    charges = heard_owners({liar: naming_all(liar) for liar in liars}, DISTURBED_STEP, owners, reports, Primitives())
    assert len(charges) == len(liars) * (len(owners) - 1)
    vote = Vote(tuple(charge.ballot(False) for charge in charges))
    assert not isinstance(decode(Phase.VOTE, encode(vote)), Malformed)
