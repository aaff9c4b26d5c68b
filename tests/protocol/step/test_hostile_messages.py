"""Messages that are well-formed and hostile, and silence at the worst moment: what none of our attacks does yet."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.protocol.small_runs import SMALL, is_what_a_server_would_get, kept_promises, records, rewired, run_on
from troth.crypto import Identity, PeerId, Slot, blob_digest, derive
from troth.protocol.core.channel import Channel, ProvenParts, Showing
from troth.protocol.core.errors import LeftOutError
from troth.protocol.core.parts import ProvenPart
from troth.protocol.core.roles import draw_roles
from troth.protocol.step.checks import sum_vanishes, suspicious_parts
from troth.protocol.step.trials import heard_owners
from troth.protocol.wire.messages import (
    Accusation,
    Accuse,
    Announced,
    Clip,
    Commit,
    Envelope,
    Kind,
    Malformed,
    Message,
    Phase,
    Report,
    ReportNumbers,
    Reveal,
    Verdict,
    Vote,
    decode,
    encode,
)
from troth.protocol.wire.primitives import Primitives
from troth.simulation import ProtocolSimulation
from troth.simulation.lockstep.drop_outs import DropOut, DroppingChannel

STEP = 3
CALM = dataclasses.replace(SMALL, byzantine=0, steps=6, evaluate_every=6)
LYING = dataclasses.replace(SMALL, steps=6, evaluate_every=6)


class _Wrapped:
    """Everything as the channel inside does it."""

    def __init__(self, inner: Channel) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Saying(_Wrapped):
    """Says something else, in one step."""

    def __init__(self, inner: Channel, other: Callable[[Message], Message]) -> None:
        super().__init__(inner)
        self._other = other

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        return await self._inner.announce(slot, self._other(message) if slot.step == STEP else message)


class _SendingAgain(_Wrapped):
    """In a later attempt it sends all its parts once more, to those who owned them in the first."""

    _first: Mapping[int, tuple[PeerId, ProvenPart]]

    async def scatter(self, slot: Slot, proven_parts: Mapping[int, tuple[PeerId, ProvenPart]]) -> ProvenParts:
        if slot.attempt == 0:
            self._first = proven_parts
        return await self._inner.scatter(slot, {**self._first, **proven_parts})


class _LayingNothingOpen(_Wrapped):
    """Where parts are disputed, it offers nothing in the name of every owner."""

    async def disclose(
        self, slot: Slot, mine: ProvenParts, wanted: Collection[Showing], count: int
    ) -> Mapping[Showing, Mapping[PeerId, ProvenPart]]:
        return await self._inner.disclose(slot, {part: {} for part, _ in wanted}, wanted, count)


def _contributors(simulation: ProtocolSimulation) -> list[PeerId]:
    """Who contributes to the step, in the order of the parts they own; known once the step before is over."""
    state = simulation.states[simulation.honest[0]]
    assert state.step == STEP
    return list(draw_roles(simulation.run, state.roster, state.randomness, state.pending_audits).owners)


@cache
def _calm_contributors() -> list[PeerId]:
    return _contributors(run_on(ProtocolSimulation(CALM), lambda s: s.steps_done == STEP))


def _calm_run() -> tuple[ProtocolSimulation, list[PeerId]]:
    """A run that nobody disturbs yet, and who will contribute to the step in which somebody does."""
    return ProtocolSimulation(CALM), _calm_contributors()


def _shorter(message: Message) -> Message:
    return msgspec.structs.replace(message, numbers=message.numbers[:-8]) if isinstance(message, Report) else message


def _of_one_part_less(message: Message) -> Message:
    return (
        msgspec.structs.replace(message, numbers=message.numbers[: -8 * 18]) if isinstance(message, Report) else message
    )


def _no_report(message: Message) -> Message:
    return msgspec.structs.replace(message, numbers=b"") if isinstance(message, Report) else message


def _other_coin_a(message: Message) -> Message:
    return Reveal(bytes(32), message.held) if isinstance(message, Reveal) else message


def _no_root(message: Message) -> Message:
    return msgspec.structs.replace(message, root=None, length=None) if isinstance(message, Commit) else message


def _infinite(message: Message) -> Message:
    return _numbers(message, lambda numbers: np.full_like(numbers, np.nan))


def _numbers(message: Message, change: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Message:
    """A report of other numbers: for each part a length, a distance and 16 projections."""
    if not isinstance(message, Report) or not message.numbers:
        return message
    numbers = change(np.frombuffer(message.numbers, "<f8").reshape(-1, 18).copy())
    return msgspec.structs.replace(message, numbers=numbers.astype("<f8").tobytes())


def _longer(message: Message) -> Message:
    """Than it committed to be."""
    return _numbers(message, lambda numbers: numbers * np.array([1 + 1e-8, *[1] * 17]))


def _of_no_length(message: Message) -> Message:
    return _numbers(message, lambda numbers: numbers * np.array([0, *[1] * 17]))


def _negative(message: Message) -> Message:
    """It adds up, but no length is negative."""
    return _numbers(message, lambda numbers: numbers * np.array([-1, *[1] * 17]))


def _other_length(message: Message) -> Message:
    return msgspec.structs.replace(message, length=2.0**400) if isinstance(message, Commit) else message


def _length_of_nothing(message: Message) -> Message:
    return msgspec.structs.replace(message, length=0.0) if isinstance(message, Commit) else message


def _no_length(message: Message) -> Message:
    return msgspec.structs.replace(message, length=None) if isinstance(message, Commit) else message


@pytest.mark.parametrize(
    ("say", "attempts"),
    [
        (_no_root, 1),
        (_other_coin_a, 2),
        (_shorter, 2),
        (_of_one_part_less, 2),
        (_no_report, 2),
        (_infinite, 2),
        (_longer, 2),
        (_of_no_length, 2),
        (_negative, 2),
        (_other_length, 2),
        (_length_of_nothing, 2),
        (_no_length, 1),
    ],
)
def test_who_says_it_in_another_form_is_out_and_the_step_goes_on(
    say: Callable[[Message], Message], attempts: int
) -> None:
    """[N1, M3, V3] Also lengths that do not add up. Absent, not banned: it did not say what was asked for, no more is known."""
    simulation, contributors = _calm_run()
    odd = contributors[2]
    rewired(simulation, odd, partial(_Saying, other=say))
    run_on(simulation)
    assert kept_promises(simulation) == {}
    record = records(simulation)[STEP]
    assert record.absent == (odd,)
    assert set(record.contributors) == set(contributors) - {odd}
    assert record.parts == len(contributors)
    assert simulation.attempts == 7 + attempts - 1  # six steps, and the closing one
    assert isinstance(simulation.gone[odd], LeftOutError)
    assert len(records(simulation)) == 6
    assert is_what_a_server_would_get(simulation)


def test_a_coin_b_that_does_not_fit_counts_as_none() -> None:
    """[N3, R6] Struck, still a member; what comes with it is not heard, and everyone audits next."""
    simulation, contributors = _calm_run()
    odd, framed = contributors[0], contributors[1]

    def say(message: Message) -> Message:
        lie = Accusation(framed, Kind.REPORT, STEP, 0)
        if not isinstance(message, Accuse):
            return message
        return msgspec.structs.replace(message, accusations=(lie,), coin=bytes(32))

    rewired(simulation, odd, partial(_Saying, other=say))
    run_on(simulation)
    assert kept_promises(simulation) == {}
    told = records(simulation)
    assert (told[STEP].struck, told[STEP].judgements, told[STEP].absent) == ((odd,), (), ())
    assert odd in told[STEP].contributors
    assert told[STEP + 1].contributors == told[STEP + 1].members
    assert odd in told[STEP + 2].members


@pytest.mark.parametrize("named", [1, 2, None], ids=["one", "two", "all"])
def test_an_owner_that_says_it_did_not_get_parts_leaves_alone(named: int | None) -> None:
    """[N5] The part is handed round, most have it, and the owner that still misses it is out: nobody goes with it."""
    simulation, contributors = _calm_run()
    liar = contributors[0]
    missing = tuple(contributors[1:][:named])

    def say(message: Message) -> Message:
        if not isinstance(message, Clip):
            return message
        return msgspec.structs.replace(message, centers=(), missing=missing)

    rewired(simulation, liar, partial(_Saying, other=say))
    run_on(simulation)
    assert kept_promises(simulation) == {}
    record = records(simulation)[STEP]
    assert set(record.absent) == {liar}
    assert len(records(simulation)) == 6
    assert is_what_a_server_would_get(simulation)


class _Withholding(_Wrapped):
    """Sends one owner nothing; and, if so told, hands nothing round either."""

    def __init__(self, inner: Channel, victim: PeerId, *, stubborn: bool) -> None:
        super().__init__(inner)
        self._victim, self._stubborn = victim, stubborn

    async def scatter(self, slot: Slot, proven_parts: Mapping[int, tuple[PeerId, ProvenPart]]) -> ProvenParts:
        kept = {part: sent for part, sent in proven_parts.items() if sent[0] != self._victim or slot.step != STEP}
        return await self._inner.scatter(slot, kept)

    async def disclose(
        self, slot: Slot, mine: ProvenParts, wanted: Collection[Showing], count: int
    ) -> Mapping[Showing, Mapping[PeerId, ProvenPart]]:
        return await self._inner.disclose(slot, {} if self._stubborn else mine, wanted, count)


@pytest.mark.parametrize("stubborn", [False, True], ids=["hands it round", "keeps it"])
def test_a_contributor_that_sends_an_owner_nothing_hands_its_part_round_or_is_out(stubborn: bool) -> None:
    """[N5] The owner gets it from the others; where most do not get it, the contributor is out, and nobody else."""
    simulation, contributors = _calm_run()
    withholding, victim = contributors[1], contributors[0]
    rewired(simulation, withholding, partial(_Withholding, victim=victim, stubborn=stubborn))
    run_on(simulation)
    assert kept_promises(simulation) == {}
    record = records(simulation)[STEP]
    assert set(record.absent) == ({withholding} if stubborn else set())
    assert simulation.attempts > len(simulation.trace), "it took another attempt"
    assert is_what_a_server_would_get(simulation)


def test_an_owner_that_names_only_strangers_leaves_alone() -> None:
    """[N5] Whom it names must have contributed."""
    simulation, contributors = _calm_run()
    validator = next(peer for peer in simulation.honest if peer not in contributors)
    stranger = Identity.from_secret(bytes(32)).peer
    for missing in ((), (stranger, validator)):
        simulation = ProtocolSimulation(CALM)

        def say(message: Message, missing: tuple[PeerId, ...] = missing) -> Message:
            changed = isinstance(message, Clip)
            return msgspec.structs.replace(message, centers=(), missing=missing) if changed else message

        rewired(simulation, contributors[0], partial(_Saying, other=say))
        run_on(simulation)
        assert kept_promises(simulation) == {}
        assert records(simulation)[STEP].absent == (contributors[0],)


@pytest.mark.parametrize("number", [1.7e308, -1.7e308, 1e200, 1e100, -1.0, 5e-324, 0.0])
def test_reports_of_any_finite_number_are_judged(number: float) -> None:
    """[M3, V1, V2] Two of seven say something absurd. What no honest number can be is no message; else both are banned."""
    simulation = ProtocolSimulation(dataclasses.replace(LYING, attack="silent-validation"))

    def say(message: Message) -> Message:
        return _numbers(message, lambda numbers: np.column_stack([numbers[:, :1], np.full((len(numbers), 17), number)]))

    for peer in simulation.peers:
        if peer not in simulation.honest:
            rewired(simulation, peer, partial(_Saying, other=say))
    run_on(simulation)
    banned = kept_promises(simulation)
    record = records(simulation)[STEP]
    validators = set(record.members) - set(record.contributors) - record.leaving
    gone = set(simulation.byzantine) - {simulation.numbers[PeerId(peer)] for peer in validators}
    assert gone
    if 0 <= number <= 2.0**400:
        assert set(banned) == gone
        assert set(banned.values()) <= {Kind.REPORT, Kind.AGGREGATE}
    else:
        assert banned == {}
        assert set(simulation.absent) == gone


@pytest.mark.parametrize("number", [2.0**400, -(2.0**400)])
def test_sums_of_the_largest_numbers_there_may_be_do_not_vanish(number: float) -> None:
    """[V2, M3] And nobody falls over them."""
    said = {PeerId(bytes([k])): ReportNumbers(np.ones(2), np.ones(2), np.full((2, 16), number)) for k in range(3)}
    assert not sum_vanishes(0, said, 1.0, 1.0, 1)
    assert suspicious_parts(said, [1.0, 1.0], [1.0, 1.0], (0, 1, 2)) == {0, 1}


def _moved(message: Message) -> Message:
    """The same length in all, but not in these parts."""
    return _numbers(message, lambda numbers: np.column_stack([np.roll(numbers[:, 0], 1), numbers[:, 1:]]))


def test_a_length_that_adds_up_and_is_wrong_convicts() -> None:
    """[V1, V3, T7] Owners compare it with the part they hold. Else liars could shift the median that V3 goes by."""
    simulation = ProtocolSimulation(dataclasses.replace(LYING, attack="silent-validation"))
    liars = [peer for peer in simulation.peers if peer not in simulation.honest]
    for peer in liars:
        rewired(simulation, peer, partial(_Saying, other=_moved))
    run_on(simulation)
    record = records(simulation)[STEP]
    assert {simulation.numbers[PeerId(peer)] for peer in record.banned} == set(kept_promises(simulation))
    assert set(record.banned) == set(liars) - (set(record.members) - set(record.contributors) - record.leaving) != set()
    assert {j.kind for j in record.judgements if j.banned} <= {Kind.REPORT, Kind.AGGREGATE}


class _Inventing(_Wrapped):
    """Accuses somebody about its own part, in this step, and then lays nothing open: it would like another draw."""

    _reports: Mapping[PeerId, Announced]

    def __init__(self, inner: Channel, target: PeerId, part: int) -> None:
        super().__init__(inner)
        self._target, self._part = target, part

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        if isinstance(message, Accuse) and (slot.step, slot.attempt) == (STEP, 0):
            digest = blob_digest(self._reports[self._target].envelope.payload)
            lie = Accusation(self._target, Kind.REPORT, STEP, self._part, digest)
            message = msgspec.structs.replace(message, accusations=(lie,))
        announced = await self._inner.announce(slot, message)
        if isinstance(message, Report):
            self._reports = announced
        return announced

    async def disclose(
        self, slot: Slot, mine: ProvenParts, wanted: Collection[Showing], count: int
    ) -> Mapping[Showing, Mapping[PeerId, ProvenPart]]:
        return await self._inner.disclose(slot, {}, wanted, count)


@pytest.mark.parametrize("strikes", [0, 2])
def test_there_is_no_second_draw_for_nothing(strikes: int) -> None:
    """[N3, R6, T6] The attempt is repeated without it, its coins decide nothing; but it is struck, so that everyone is audited in
    the next step, and for the third time it has to go for good."""
    simulation, contributors = _calm_run()
    owner, target = contributors[0], contributors[1]
    rewired(simulation, owner, partial(_Inventing, target=target, part=0))
    earlier = tuple((-k, owner) for k in range(1, strikes + 1))
    for peer, state in simulation.states.items():
        roster = dataclasses.replace(state.roster, strikes=earlier)
        simulation.states[peer] = dataclasses.replace(state, roster=roster)
    run_on(simulation)
    assert kept_promises(simulation) == {}
    record, following = records(simulation)[STEP : STEP + 2]
    assert {j.verdict for j in record.judgements if j.kind == Kind.AGGREGATE} == {Verdict.WITHHELD}
    assert record.struck == (owner,)
    assert (record.absent, record.expelled) == (((), (owner,)) if strikes else ((owner,), ()))
    assert following.contributors == following.members, "everyone audits"
    assert simulation.attempts == 7 + 1
    assert is_what_a_server_would_get(simulation)


def test_parts_that_are_sent_again_take_away_nothing_that_came() -> None:
    """[C3, N1] One liar vanishes, another sends its parts twice: nobody else loses anything by it."""
    scenario = dataclasses.replace(LYING, attack="vanish:after=reveal + sign-flip")
    simulation = ProtocolSimulation(scenario)
    vanisher, sender = (
        peer for number in simulation.byzantine for peer, n in simulation.numbers.items() if n == number
    )
    rewired(simulation, sender, _SendingAgain)
    run_on(simulation)
    kept_promises(simulation)
    assert simulation.stalled is None
    assert records(simulation)[STEP].absent == (vanisher,)


@pytest.mark.parametrize("seed", [6, 7])
def test_only_an_owner_lays_open_what_it_received(seed: int) -> None:
    """[T6] Else whoever disputes a part could make its honest owner look as if it had nothing to show."""
    simulation = ProtocolSimulation(dataclasses.replace(LYING, attack="wrong-report", seed=seed))
    for peer in simulation.peers:
        if peer not in simulation.honest:
            rewired(simulation, peer, _LayingNothingOpen)
    run_on(simulation)
    kept_promises(simulation)


@pytest.mark.parametrize("call", [6, 7, 8], ids=["Accuse", "lay open", "Vote"])
def test_an_owner_that_loses_power_before_a_trial_about_its_part_is_absent_and_not_banned(call: int) -> None:
    """[T6, N1, N3] A liar reports wrongly about part 0; its honest owner is gone before it can say or show anything."""
    scenario = dataclasses.replace(LYING, attack="wrong-report", seed=3)
    probe = run_on(ProtocolSimulation(scenario), lambda s: s.steps_done == STEP)
    owner = _contributors(probe)[0]
    assert owner in probe.honest
    simulation = ProtocolSimulation(scenario)
    rewired(simulation, owner, partial(DroppingChannel, drop_out=DropOut(STEP, call)))
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
        lies = tuple(Accusation(peer, Kind.REPORT, STEP, part, blob_digest(peer)) for peer in owners if peer != liar)
        return Announced(liar, Accuse(lies, bytes(32)), Envelope(b"", bytes(64)))

    reports = {peer: Announced(peer, Report(b""), Envelope(peer, bytes(64))) for peer in owners}
    charges = heard_owners({liar: naming_all(liar) for liar in liars}, STEP, owners, reports, Primitives())
    assert len(charges) == len(liars) * (len(owners) - 1)
    vote = Vote(tuple(charge.ballot(False) for charge in charges))
    assert not isinstance(decode(Phase.VOTE, encode(vote)), Malformed)
