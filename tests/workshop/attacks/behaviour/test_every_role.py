"""Lies in every role, silence at every moment, and all of it mixed: what the design promises holds all the same."""

import dataclasses
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import combinations

import pytest

from tests.protocol.small_runs import (
    SMALL,
    equals_trusted_server,
    finished,
    kept_promises,
    last_standing,
    liars_gone,
    records,
    run_on,
    wrap_channel,
)
from troth.crypto import PeerId, stream
from troth.evidence.verify import verify_ban
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import Coins, SeededEntropy
from troth.protocol.core.run import StalledError
from troth.protocol.wire.messages import ChargeKind, GuiltySide
from troth.workshop.attacks import ATTACKS
from troth.workshop.simulation import ALSO, ProtocolSimulation, Scenario
from troth.workshop.simulation.exchange import DropOut, DroppingChannel

START = 3
SHORT = dataclasses.replace(SMALL, steps=9, evaluate_every=9)
# Four of ten lie, or seven of sixteen: as many as the guarantee covers.
TEN = dataclasses.replace(SMALL, peers=10, byzantine=4, steps=40, evaluate_every=40, seed=1)
SIXTEEN = Scenario(task="quadratic:dimension=60", byzantine=7, attack_start=2, steps=60, evaluate_every=60)
WITHOUT_CODE = [name for name, attack in ATTACKS.items() if not attack.needs_code]
ON_BEHAVIOUR = [name for name in WITHOUT_CODE if ATTACKS[name].needs_protocol]
# These harm the model, for a while: a lie about a gradient or a covered aggregate stays in it.
HARMFUL = ("covered-aggregate", "covered-once", "lying-jury", "grind", "adapt", "reroll", "pad-votes", "strategist")


def numbers_of(simulation: ProtocolSimulation, peers: Iterable[bytes]) -> set[int]:
    return {simulation.numbers[PeerId(peer)] for peer in peers}


def validators_of(simulation: ProtocolSimulation, record: StepRecord) -> set[int]:
    """Members who were there all the time and contributed nothing."""
    return numbers_of(simulation, set(record.members) - set(record.contributors) - record.leaving)


def convictions(simulation: ProtocolSimulation) -> set[ChargeKind]:
    return {j.kind for record in records(simulation) for j in record.judgements if j.banned is not None}


def by_attack(simulation: ProtocolSimulation) -> dict[str, set[int]]:
    """Which of the liars play which part."""
    names = {kind: name for name, kind in ATTACKS.items()}
    dealt: dict[str, set[int]] = {}
    for member in simulation.byzantine:
        dealt.setdefault(names[type(simulation.coalition.attack_of(member))], set()).add(member)
    return dealt


@pytest.mark.long
@pytest.mark.parametrize("name", ON_BEHAVIOUR)
def test_two_of_seven_break_no_promise(name: str) -> None:
    """[T4, E1, N1] Agreement, no honest ban, evidence of every ban, and training goes on, whatever the attack is."""
    simulation = finished(dataclasses.replace(SHORT, attack=name))
    kept_promises(simulation)
    told = records(simulation)
    assert simulation.stalled is None
    assert len(told) == 9
    assert told[-1].updated
    assert numbers_of(simulation, told[-1].members) >= set(range(7)) - set(simulation.byzantine)
    if name not in HARMFUL:
        assert equals_trusted_server(simulation)


@pytest.fixture(scope="module")
def covered() -> ProtocolSimulation:
    """A wrong aggregate whose traces colluders absorb: no public number shows it, an audit does."""
    return finished(dataclasses.replace(SIXTEEN, attack="covered-aggregate"), until=liars_gone)


def test_all_seven_who_cover_a_wrong_aggregate_go(covered: ProtocolSimulation) -> None:
    """[T7, D2] One audited report is enough for the owners that let it pass."""
    banned = kept_promises(covered)
    assert set(banned) == set(covered.byzantine)
    assert {ChargeKind.AUDITED_REPORT, ChargeKind.COVER} <= convictions(covered)
    assert ChargeKind.GRADIENT not in convictions(covered), "nobody lied about its gradient"
    assert len(covered.trace) < 30


def test_public_numbers_did_not_show_the_cover(covered: ProtocolSimulation) -> None:
    """[V2] Until the audit there is no trial: what convicts is the recomputation."""
    first = min(ban.step for ban in covered.bans)
    assert first > covered.scenario.attack_start
    assert all(record.judgements == () for record in records(covered)[:first])
    kinds = {j.kind for j in records(covered)[first].judgements if j.banned is not None}
    assert kinds == {ChargeKind.AUDITED_REPORT, ChargeKind.COVER}


def test_owners_are_banned_for_a_report_that_others_made(covered: ProtocolSimulation) -> None:
    """[T7] Each of them owned, in the audited step, the part that it is convicted of."""
    told = records(covered)
    for record in told:
        covers = [j for j in record.judgements if j.kind == ChargeKind.COVER]
        audited = {(j.step, j.target) for j in record.judgements if j.kind == ChargeKind.AUDITED_REPORT and j.banned}
        assert not covers or audited
        for judgement in covers:
            assert judgement.accuser is None
            assert judgement.verdict == GuiltySide.ACCUSED
            assert judgement.step == record.step - 1
            assert judgement.target in told[judgement.step].contributors
            assert (judgement.step, judgement.target) not in audited


class _OneCoin(SeededEntropy):
    """One coin for both: the next roles are known as soon as the projections are."""

    def coins(self, step: int, attempt: int) -> Coins:
        a = super().coins(step, attempt).a
        return Coins(a, a)


# Targets must not be known while one can still lie: colluders who foresee an audit report the truth.
FORESIGHT = dataclasses.replace(SIXTEEN, attack="covered-aggregate:foresight=true")


@pytest.mark.long
def test_with_one_coin_they_go_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """[R1, U4] Wrong aggregates and an audit in each of twenty steps, and not a single trial until the run is closed; with two
    coins all liars are gone before the tenth."""
    monkeypatch.setattr("troth.workshop.simulation.protocol_run.SeededEntropy", _OneCoin)
    simulation = finished(dataclasses.replace(FORESIGHT, steps=20, evaluate_every=20))
    kept_promises(simulation)
    told = records(simulation)
    assert len(told) == 20
    assert all((record.judgements, record.absent) == ((), ()) for record in told)
    assert simulation.audits == 19 + 5 * 15  # only the closing step, which audits everyone, finds somebody
    assert not equals_trusted_server(simulation), "and they did shift the model"


@pytest.mark.long
def test_with_two_coins_they_are_banned() -> None:
    """[R1, T7] The very same attack."""
    simulation = finished(FORESIGHT, until=liars_gone)
    assert set(kept_promises(simulation)) == set(simulation.byzantine)
    assert max(ban.step for ban in simulation.bans) < 10


def test_withheld_aggregates_are_aggregated_by_another() -> None:
    """[A3, N1] Its owner is out, unpunished; the part goes to the next contributor, and the model is the right one."""
    simulation = finished(dataclasses.replace(SHORT, attack="withheld-aggregate"))
    assert kept_promises(simulation) == {}
    told = records(simulation)
    assert simulation.trials == 0
    assert sorted(simulation.absent) == simulation.byzantine
    owners = set(simulation.byzantine) - validators_of(simulation, told[START])
    assert numbers_of(simulation, told[START].absent) == owners != set()
    assert told[START].parts == 6, "parts and bounds stay"
    assert simulation.attempts == 10 + len({record.step for record in told if record.absent})
    assert equals_trusted_server(simulation)


@pytest.mark.parametrize("attack", ["mass-accusation", "false-accusation"])
def test_a_false_accuser_is_banned_and_the_accused_is_not(attack: str) -> None:
    """[T2, T4] In the step in which it owns a part or audits; of what it says about others nothing is heard."""
    simulation = finished(dataclasses.replace(SHORT, attack=attack))
    banned = kept_promises(simulation)
    told = records(simulation)
    assert set(banned) == set(simulation.byzantine)
    for judgement in (j for record in told for j in record.judgements if j.accuser is not None):
        assert judgement.verdict == GuiltySide.ACCUSER
        assert judgement.accuser not in simulation.honest
        assert judgement.target in told[-1].members
    for evidence in simulation.evidence:
        proof = verify_ban(evidence.text)
        assert proof.banned == proof.judgement.accuser
        assert "false" in proof.sentence()
    owners = set(simulation.byzantine) - validators_of(simulation, told[START])
    assert {ban.peer for ban in simulation.bans if ban.step == START} >= owners
    assert equals_trusted_server(simulation)


def test_accusing_everyone_of_everything_keeps_nobody_busy() -> None:
    """[T1, T2] Of about a thousand accusations each, those about own parts and targets are tried, once."""
    simulation = finished(dataclasses.replace(SHORT, attack="mass-accusation"))
    record = records(simulation)[START]
    liars, honest = simulation.byzantine, len(simulation.honest)
    by_owners = [j for j in record.judgements if j.kind == ChargeKind.REPORT]
    assert 0 < len(by_owners) <= len(liars) * honest
    assert len({(j.accuser, j.target, j.part) for j in by_owners}) == len(by_owners)
    assert all(j.step == START for j in by_owners)
    audits = [j for j in record.judgements if j.accuser is not None and j.kind != ChargeKind.REPORT]
    assert all(j.step == START - 1 for j in audits)
    assert len(audits) <= 1, "one target, and the first word about it"


def test_a_validator_that_never_accuses_delays_and_saves_nobody() -> None:
    """[R4, T4] Its fellow is caught by the next honest one; to see nothing is no crime that could be proved."""
    scenario = dataclasses.replace(SMALL, attack="sign-flip + silent-validation", attack_start=1)
    simulation = finished(scenario, until=lambda s: bool(s.bans))
    roles, banned = by_attack(simulation), kept_promises(simulation)
    assert banned == dict.fromkeys(roles["sign-flip"], ChargeKind.GRADIENT)
    (judgement,) = records(simulation)[simulation.bans[0].step].judgements
    assert judgement.accuser in simulation.honest
    assert roles["silent-validation"] <= numbers_of(simulation, records(simulation)[-1].members)


def test_three_lying_jurors_of_seven_change_no_verdict() -> None:
    """[T4] Beyond the guarantee, which needs honest contributors too; but four honest votes of seven decide."""
    scenario = dataclasses.replace(SMALL, byzantine=3, beyond_guarantee=True, attack="lying-jury")
    simulation = finished(scenario, until=liars_gone)
    assert kept_promises(simulation) == dict.fromkeys(simulation.byzantine, ChargeKind.GRADIENT)
    counts = [(proof.votes, proof.members) for proof in (verify_ban(e.text) for e in simulation.evidence)]
    assert counts == [(4, 7), (4, 6), (4, 6)], "as many as it takes"
    for judgement in (j for record in records(simulation) for j in record.judgements):
        assert judgement.verdict == GuiltySide.ACCUSED


@pytest.mark.long
def test_four_lying_jurors_of_seven_do() -> None:
    """[T4] Else the test before would prove nothing: with most votes they ban whoever accuses one of them."""
    scenario = dataclasses.replace(SMALL, byzantine=4, beyond_guarantee=True, attack="lying-jury", steps=20)
    simulation = finished(scenario, until=lambda s: bool(s.bans))
    assert {ban.peer for ban in simulation.bans} - set(simulation.byzantine)
    assert "falsely" in simulation.bans[0].reason


@pytest.mark.parametrize("after", ["commit", "clip", "reveal", "report"])
def test_who_vanishes_is_absent_and_not_banned(after: str) -> None:
    """[N1, N3] In the step in which it falls silent; if only its coin B is missed, with the next one."""
    simulation = finished(dataclasses.replace(SHORT, attack=f"vanish:after={after}"))
    assert kept_promises(simulation) == {}
    told = records(simulation)
    assert sorted(simulation.absent) == simulation.byzantine
    late = after == "report"
    assert numbers_of(simulation, told[START + late].absent) == set(simulation.byzantine)
    assert numbers_of(simulation, told[START].struck) == (set(simulation.byzantine) if late else set())
    there = set(told[START + 1].members) - set(told[START + 1].absent)
    assert (set(told[START + 1].contributors) == there) == late, "a missed coin has everyone audit"
    counted = numbers_of(simulation, told[START].contributors) & set(simulation.byzantine)
    assert bool(counted) == late, "a report was given, so its gradient stays in"
    assert simulation.attempts == 10 + (not late)
    assert simulation.trials == 0
    assert equals_trusted_server(simulation)


@pytest.mark.long
def test_gradients_that_are_wrong_by_little_or_much_are_caught_by_their_bits() -> None:
    """[D1] A nudge by a millionth, and ten times the length."""
    for attack in ("nudge:size=1e-6", "inflate"):
        simulation = finished(dataclasses.replace(SMALL, attack=attack), until=liars_gone)
        assert kept_promises(simulation) == dict.fromkeys(simulation.byzantine, ChargeKind.GRADIENT)


def test_each_of_a_mixed_coalition_ends_as_its_own_attack_does() -> None:
    """[D1, V2, N1] Sign flippers are audited, the cheating owner is caught at once, who vanishes is absent."""
    simulation = finished(dataclasses.replace(TEN, attack="sign-flip + vanish + wrong-aggregate"), until=liars_gone)
    dealt, banned = by_attack(simulation), kept_promises(simulation)
    assert {name: len(squad) for name, squad in dealt.items()} == {"sign-flip": 2, "vanish": 1, "wrong-aggregate": 1}
    expected: Mapping[str, ChargeKind] = {"sign-flip": ChargeKind.GRADIENT, "wrong-aggregate": ChargeKind.AGGREGATE}
    assert banned == {member: kind for name, kind in expected.items() for member in dealt[name]}
    assert set(simulation.absent) == dealt["vanish"]
    assert liars_gone(simulation)


@pytest.mark.long
@pytest.mark.parametrize(
    "attack",
    [
        "covered-aggregate + grind",
        "lying-jury + mass-accusation + withheld-aggregate",
        "wrong-report + vanish:after=report + sign-flip",
        "covered-aggregate + covered-aggregate:shift=3 + vanish:after=clip",
        "grind + silent-validation + false-accusation + alie",
    ],
)
def test_mixtures_break_no_promise(attack: str) -> None:
    """[T4, E1, N1, R6] And whoever did more than keep quiet as a validator is gone in the end."""
    simulation = finished(dataclasses.replace(TEN, attack=attack), until=liars_gone)
    banned = kept_promises(simulation)
    harmless = by_attack(simulation).get("silent-validation", set())
    assert set(banned) | set(simulation.absent) >= set(simulation.byzantine) - harmless


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_drop_outs_among_liars_break_no_promise(seed: int) -> None:
    """[N1, N4, T4] A seed draws two attacks and the moments at which two honest peers lose power."""
    draw = stream(seed, "mixture")
    needs_labels = ("label-flip", "backdoor")
    pairs = list(combinations(sorted(name for name in WITHOUT_CODE if name not in needs_labels), 2))
    attack = ALSO.join(pairs[int(draw.integers(len(pairs), 1)[0])])
    scenario = dataclasses.replace(
        SMALL, peers=10, byzantine=3, drop_outs=2, attack=attack, steps=10, evaluate_every=10, seed=100 + seed
    )
    simulation = finished(scenario)
    kept_promises(simulation)
    assert simulation.stalled is None
    assert len(records(simulation)) == 10
    left = numbers_of(simulation, simulation.states[last_standing(simulation)].roster.members)
    honest = set(range(10)) - set(simulation.byzantine)
    assert len(left & honest) >= len(honest) - 2


@pytest.mark.long
def test_an_honest_majority_goes_on_when_honest_peers_lose_power() -> None:
    """[N1, N4] Three of nine, one after another: absent, not banned, and the others train on with the right model."""
    scenario = dataclasses.replace(SMALL, peers=9, byzantine=0, drop_outs=3, steps=12, evaluate_every=12)
    simulation = finished(scenario)
    assert kept_promises(simulation) == {}
    assert len(records(simulation)) == 12
    assert len(simulation.gone) == 3
    assert set(simulation.absent) <= numbers_of(simulation, simulation.gone)
    assert all(record.updated for record in records(simulation))
    assert equals_trusted_server(simulation)


@pytest.mark.parametrize(
    ("call", "told", "why"),
    [
        (0, 2, "4 of 9 members are left, 5 are needed"),  # Commit
        (3, 2, "4 of 9 members are left, 5 are needed"),  # the aggregates
        (6, 2, "4 of 9 members are left, 5 are needed"),  # Accuse
        (7, 3, "4 of 9 members are left, 5 are needed"),  # Commit of the next step
    ],
)
def test_a_minority_does_not_go_on_alone(call: int, told: int, why: str) -> None:
    """[N4] Five of nine lose power at once, in step 2: the others stop there, or where they notice, and say why."""
    simulation = ProtocolSimulation(dataclasses.replace(SMALL, peers=9, byzantine=0, steps=6, evaluate_every=6))
    cut = simulation.honest[2:7]
    for peer in cut:
        wrap_channel(simulation, peer, partial(DroppingChannel, drop_out=DropOut(2, call)))
    run_on(simulation)
    assert len(simulation.trace) == told
    assert simulation.bans == []
    left = set(simulation.honest) - set(cut)
    assert all(isinstance(simulation.gone[peer], StalledError) for peer in left)
    assert len({simulation.states[peer].step for peer in left}) == 1
    assert simulation.stalled == f"step {told}: {why}"


@pytest.mark.long
@pytest.mark.parametrize("call", [0, 2, 5], ids=["Commit", "Clip", "Report"])
def test_colluders_cover_also_when_an_honest_peer_is_missing(call: int) -> None:
    """[N1, T7] Parts stay as they were cut when somebody is out; an attack that falls over this tests nothing."""
    simulation = ProtocolSimulation(dataclasses.replace(TEN, attack="covered-aggregate", attack_start=1))
    for peer, step in zip(simulation.honest, (2, 3, 4), strict=False):
        wrap_channel(simulation, peer, partial(DroppingChannel, drop_out=DropOut(step, call)))
    run_on(simulation, lambda s: s.steps_done == 6)
    kept_promises(simulation)
