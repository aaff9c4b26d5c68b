"""Evidence that is validly signed by everyone, but wrong in one relation: each must be refused for that reason."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from tests.evidence.forger import Forger
from troth.crypto import Identity, derive
from troth.evidence.file_format import to_text
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.core.records import Owed, decode_record
from troth.protocol.core.run import Parameters, Run
from troth.protocol.wire.messages import Accuse, ChargeKind, GuiltySide, Phase, Vote
from troth.protocol.wire.phases import decode
from troth.workshop.simulation import ProtocolSimulation


@pytest.fixture(scope="module")
def forger(attacked: ProtocolSimulation) -> Forger:
    """A forger of the second ban, which has a history."""
    return Forger(attacked, attacked.evidence[1])


def test_a_file_signed_again_without_changes_is_accepted(forger: Forger) -> None:
    """[E1] Re-signing everything without a change still proves: the refusals below are for what was changed."""
    votes = [forger.message(vote, Phase.VOTE, lambda vote: vote) for vote in forger.file.votes]
    accusation = forger.message(forger.file.accusation, Phase.ACCUSE, lambda accuse: accuse)
    before, record = [forger.record(old) for old in forger.file.before], forger.record(forger.file.record)
    assert forger.refusal(votes=votes, accusation=accusation, before=before, record=record) == ""


def test_the_accuser_must_have_been_drawn(forger: Forger) -> None:
    """[E1, R4] Under other randomness somebody else was the accused's validator."""
    reasons = {forger.refusal(before=forger.last(randomness=derive(k))) for k in range(6)}
    assert any("not drawn" in reason for reason in reasons)


def test_the_accused_must_have_contributed(forger: Forger) -> None:
    """[E1, R4]"""
    before = decode_record(bytes.fromhex(forger.file.before[-1].record))
    where = before.contributors.index(bytes.fromhex(forger.file.banned))
    less = {
        "contributors": before.contributors[:where] + before.contributors[where + 1 :],
        "roots": before.roots[:where] + before.roots[where + 1 :],
    }
    assert "had not contributed" in forger.refusal(before=forger.last(**less))
    assert "committed to" in forger.refusal(before=forger.last(roots=()))


def test_the_records_must_be_neighbours(forger: Forger) -> None:
    """[E1] Everything signed again for a later step, but not the record before."""
    later = forger.step + 1
    votes = [forger.message(vote, Phase.VOTE, lambda vote: vote, later) for vote in forger.file.votes]
    accusation = forger.message(forger.file.accusation, Phase.ACCUSE, lambda accuse: accuse, later)
    record = forger.record(forger.file.record, step=later)
    assert "neighbouring" in forger.refusal(votes=votes, accusation=accusation, record=record)


def test_the_accusation_must_be_of_the_accused(forger: Forger) -> None:
    """[E1, T1]"""
    other = next(peer for peer in forger.run.founders if peer.hex() != forger.file.banned)

    def elsewhere(accuse: Accuse) -> Accuse:
        return Accuse(tuple(msgspec.structs.replace(a, target=other) for a in accuse.accusations), accuse.coin)

    assert "of another" in forger.refusal(accusation=forger.message(forger.file.accusation, Phase.ACCUSE, elsewhere))
    nothing = forger.message(forger.file.accusation, Phase.ACCUSE, lambda accuse: Accuse((), accuse.coin))
    assert "of another" in forger.refusal(accusation=nothing)


def test_votes_must_be_members_and_for_the_verdict(forger: Forger) -> None:
    """[E1, T4]"""

    def acquit(vote: Vote) -> Vote:
        return Vote(tuple(msgspec.structs.replace(b, verdict=GuiltySide.ACCUSER) for b in vote.ballots))

    acquitted = [forger.message(vote, Phase.VOTE, acquit) for vote in forger.file.votes]
    assert "does not convict" in forger.refusal(votes=acquitted)
    silent = [forger.message(vote, Phase.VOTE, lambda _: Vote(())) for vote in forger.file.votes]
    assert "does not convict" in forger.refusal(votes=silent)
    assert "no quorum" in forger.refusal(votes=forger.file.votes[1:])
    stranger = forger.message(forger.file.votes[0], Phase.VOTE, lambda vote: vote)
    vote = decode(Phase.VOTE, bytes.fromhex(stranger.payload))
    assert isinstance(vote, Vote)
    outsider = forger.sign(Identity.from_secret(bytes(32)), Phase.VOTE, vote)
    assert "not of a member" in forger.refusal(votes=[*forger.file.votes, outsider])


def test_the_record_must_hold_the_judgement(forger: Forger) -> None:
    """[E1, T4] Without it, or with the case dismissed, nobody was banned."""
    record = decode_record(bytes.fromhex(forger.file.record.record))
    assert "bans somebody else" in forger.refusal(record=forger.record(forger.file.record, judgements=()))
    dismissed = tuple(msgspec.structs.replace(j, verdict=None) for j in record.judgements)
    assert "bans somebody else" in forger.refusal(record=forger.record(forger.file.record, judgements=dismissed))


def test_the_history_must_be_changes_in_order(forger: Forger) -> None:
    """[E1, U2] No padding, and nobody forgotten."""
    assert forger.refusal(history=[forger.file.before[0]]) != ""
    idle = forger.record(forger.file.before[0], judgements=())
    assert "more than changes" in forger.refusal(history=[*forger.file.history, idle])
    assert "another roster" in forger.refusal(history=[])


def test_a_judgement_is_of_the_step_that_was_audited(forger: Forger) -> None:
    """[E1, R4, R7] Said alike by accuser, jurors and record; but of another step nobody had drawn that audit."""
    audited = forger.step - 1
    assert forger.refusal(**forger.charged(step=audited)) == ""
    earlier = [forger.refusal(**forger.charged(step=audited - k)) for k in (1, 2, 3)]
    assert "not drawn" in earlier[1]
    assert all("not drawn" in refusal or "had not contributed" in refusal for refusal in earlier)
    assert "had not contributed" in forger.refusal(**forger.charged(step=forger.step))
    for elsewhere in (audited - 4, forger.step + 1):
        assert "not among the records" in forger.refusal(**forger.charged(step=elsewhere))


def test_accusation_ballots_and_judgement_are_of_one_step(forger: Forger) -> None:
    """[E1, T3] Changed in one of the three, it no longer fits the other two."""
    changed = forger.charged(step=forger.step - 3)
    assert "of another" in forger.refusal(accusation=changed["accusation"])
    assert "does not convict" in forger.refusal(votes=changed["votes"])
    assert "of another" in forger.refusal(record=changed["record"])


def test_a_report_of_this_step_is_not_one_of_an_earlier(forger: Forger) -> None:
    """[E1, T2] Owners speak of the step they are in, auditors of one before; a cover follows from an audit."""
    now, before = forger.step, forger.step - 1
    assert "another step's work" in forger.refusal(**forger.charged(kind=ChargeKind.REPORT, part=0, step=before))
    assert "another step's work" in forger.refusal(**forger.charged(kind=ChargeKind.AGGREGATE, part=0, step=before))
    for kind in (ChargeKind.COVER, ChargeKind.AUDITED_REPORT, ChargeKind.DEVIATION):
        assert "had not contributed" in forger.refusal(**forger.charged(kind=kind, step=now))


def test_an_audit_without_an_accuser_is_none(forger: Forger) -> None:
    """[E1, T2]"""
    charged = forger.charged(step=forger.step - 1)
    record = decode_record(bytes.fromhex(forger.file.record.record))
    nobody = tuple(msgspec.structs.replace(j, accuser=None) for j in record.judgements)
    refusal = forger.refusal(record=forger.record(forger.file.record, judgements=nobody), accusation=None)
    assert "an audit has an accuser" in refusal
    assert "do not fit" in forger.refusal(**{**charged, "accusation": None})


@pytest.mark.parametrize("evidence", [0, 1])
def test_the_records_before_are_all_there_and_in_order(attacked: ProtocolSimulation, evidence: int) -> None:
    """[E1] None dropped, none twice, none exchanged, and none that the others do not lead to."""
    forger = Forger(attacked, attacked.evidence[evidence])
    *earlier, last = forger.file.before
    assert len(earlier) == 3
    for wrong in (
        [],
        earlier,
        [last],
        [last, *earlier],
        [*earlier, earlier[-1]],
        [*earlier[:-1], last],
        [*earlier[1:], last],
        [*earlier, last, last],
        [*earlier, last, forger.file.record],
        [*forger.file.history, *earlier, last, forger.file.record],
    ):
        assert forger.refusal(before=wrong) != ""


def test_a_ban_between_the_records_is_seen(attacked: ProtocolSimulation) -> None:
    """[E1, T5] A member that an earlier record banned, expelled or found absent does not sign or vote in the next."""
    forger = Forger(attacked, attacked.evidence[1])
    someone = next(peer for peer in attacked.honest if peer.hex() != forger.file.banned)
    for number in range(4):
        for how in ("absent", "expelled"):
            before = list(forger.file.before)
            before[number] = forger.record(before[number], **{how: (someone,)})
            assert "another roster" in forger.refusal(before=before)


def test_a_debt_that_is_not_there_makes_no_accuser(attacked: ProtocolSimulation) -> None:
    """[E1, R4, R7] Nor does another draw, but for a few."""
    forger = Forger(attacked, attacked.evidence[1])
    audited = bytes.fromhex(forger.file.banned)
    assert forger.refusal(before=forger.last(owed=(Owed(audited, forger.step - 2, 1),))) == "", (
        "what is owed besides changes nothing"
    )
    reasons = [forger.refusal(before=forger.last(randomness=derive(k))) for k in range(20)]
    assert reasons.count("the accuser was not drawn to audit the accused") >= 10
    assert set(reasons) <= {"the accuser was not drawn to audit the accused", ""}


WRONG_PARAMETERS: list[dict[str, Any]] = [
    {"size": 60.0},
    {"size": "60"},
    {"size": "0x1.ep+5"},
    {"size": None},
    {"size": True},
    {"size": [60]},
    {"byzantine": "2"},
    {"byzantine": 2.0},
    {"validators": True},
    {"projections": None},
    {"beyond_guarantee": 0},
    {"beyond_guarantee": "false"},
    {"beyond_guarantee": None},
    {"tau": 0.1},
    {"tau": 1},
    {"tau": None},
    {"tau": "0.1"},
    {"tau": "nan"},
    {"tau": "inf"},
    {"tau": "0x1p99999"},
    {"tau_least": 0},
    {"tau_most": None},
    {"tau_auto": "None"},
    {"tau_auto": False},
    {"tau_auto": "0x0.0p+0"},
    {"tau_auto": "nan"},
    {"deviation": ""},
    {"deviation": 0},
    {"deviation": "nan"},
    {"colour": 3},
]


@pytest.mark.parametrize("wrong", WRONG_PARAMETERS, ids=str)
def test_parameters_of_another_type_or_name_are_refused(forger: Forger, wrong: dict[str, Any]) -> None:
    """[E1] By the type that is asked for, before anything is compared."""
    content = json.loads(to_text(forger.file))
    content["run"]["parameters"] |= wrong
    content["checksum"] = ""
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    content["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(UnprovedError):
        verify_ban(json.dumps(content, indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize(
    "respelled", [str.upper, lambda text: f" {text}", lambda text: f"+{text}", lambda text: text[2:]]
)
@pytest.mark.parametrize("name", ["tau", "tau_least", "tau_most"])
def test_a_number_has_one_spelling(forger: Forger, name: str, respelled: Callable[[str], str]) -> None:
    """[E1] The same run by its numbers; but a file has one form, or its checksum could be had in many."""
    numbers = forger.file.run.parameters
    other = {**numbers, name: respelled(str(numbers[name]))}
    assert float.fromhex(str(other[name])) == float.fromhex(str(numbers[name])) or not respelled("0x").startswith("0x")
    assert forger.refusal(run=msgspec.structs.replace(forger.file.run, parameters=other)) != ""


def test_no_parameter_may_be_left_out(forger: Forger) -> None:
    """[E1] Not even one that has a default: another version's default may be another."""
    numbers = forger.file.run.parameters
    for name in numbers:
        less = {key: value for key, value in numbers.items() if key != name}
        assert forger.refusal(run=msgspec.structs.replace(forger.file.run, parameters=less)) != ""


fractions = st.floats(2.0**-300, 2.0**300)


@given(st.data())
def test_parameters_are_written_exactly_and_read_back(data: st.DataObject) -> None:
    """[E1, G1] Whatever numbers a run agreed on: through JSON and back they are the same, and so is the run's id."""
    least, tau, most = sorted(data.draw(st.tuples(fractions, fractions, fractions)))
    parameters = Parameters(
        size=data.draw(st.integers(16, 2**40)),
        tau=tau,
        byzantine=data.draw(st.integers(0, 3)),
        validators=data.draw(st.integers(1, 4)),
        projections=data.draw(st.integers(1, 64)),
        beyond_guarantee=True,
        tau_auto=data.draw(st.none() | st.floats(1e-9, 0.5)),
        tau_least=least,
        tau_most=most,
        deviation=data.draw(st.none() | st.floats(1e-9, 0.19)),
    )
    again = Parameters.from_plain(json.loads(json.dumps(parameters.plain())))
    assert again == parameters
    founders = tuple(sorted(Identity.from_secret(bytes([k]) * 32).peer for k in range(4)))
    assert Run(founders, b"", again, bytes(32)).id == Run(founders, b"", parameters, bytes(32)).id
