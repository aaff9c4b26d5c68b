"""An owner judges itself before it speaks; and where it has no aggregate, that costs time and no honest member (SPEC A7)."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.protocol.small_runs import SMALL, finished, kept_promises
from troth.clip.blocks import Code
from troth.clip.fast import centered_clip
from troth.protocol.core.parts import part_bounds
from troth.protocol.core.records import StepRecord, decode_record
from troth.protocol.step import audits, step
from troth.protocol.wire.messages import ChargeKind, GuiltySide
from troth.workshop.attacks.base import GradientAttack
from troth.workshop.simulation import ProtocolSimulation

# P peers, D coordinates, B Byzantine, H honest
_SIZE = 1e10
_LIES = 3  # step


@dataclass(frozen=True)
class Spike(GradientAttack):
    """the honest mean, and one huge number in every part, where the fast solver's sample does not look"""

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        sent_BD = own_BD.clone()
        sent_BD[0] = honest_HD.mean(0)
        for start, _ in pairwise(part_bounds(sent_BD.shape[1], len(own_BD) + len(honest_HD))):
            sent_BD[0, start + 1] = _SIZE
        return sent_BD


SPIKED = dataclasses.replace(
    SMALL,
    task="digits",
    peers=7,
    byzantine=1,
    attack=Spike(),
    attack_start=_LIES,
    steps=8,
    evaluate_every=8,
)


def _records(simulation: ProtocolSimulation) -> list[StepRecord]:
    return [decode_record(raw) for raw in simulation.trace]


def _weak(rows_PD: Tensor, *, tau: float, **_: object) -> Tensor | None:
    """A solver that a spike defeats, and that knows it."""
    return None if float(rows_PD.abs().max()) >= _SIZE else centered_clip(rows_PD, tau=tau)


@pytest.mark.long
def test_one_number_that_the_sample_does_not_see_costs_its_sender_the_seat_and_nobody_else() -> None:
    """[A7] It had three to six honest owners banned in one step."""
    seen = finished(SPIKED)
    assert [ban.peer for ban in seen.bans] == seen.byzantine
    assert kept_promises(seen)
    assert all(record.updated for record in _records(seen) if not record.closing)


@pytest.mark.long
def test_where_nobody_finds_an_aggregate_the_step_makes_no_update_and_everyone_audits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[A7, R6, G2] Every solver fails at the liar's row: no owner is out, banned or struck; the liar is audited, and banned."""
    monkeypatch.setattr(step, "acquitted_center", _weak)
    monkeypatch.setattr(audits, "acquitted_center", _weak)
    seen = finished(dataclasses.replace(SPIKED, attack_stop=_LIES + 1))
    records = _records(seen)
    lied = records[_LIES]
    acquitted = [j for j in lied.judgements if j.kind == ChargeKind.AGGREGATE]
    assert acquitted
    assert {j.verdict for j in acquitted} == {GuiltySide.ACCUSER}, "jurors find none either"
    assert not lied.updated
    assert lied.unjudged
    assert not lied.leaving
    assert not lied.struck
    assert [ban.peer for ban in seen.bans] == seen.byzantine
    assert [ban.step for ban in seen.bans] == [_LIES + 1], "everyone audits that step in the next one"
    assert [record.updated for record in records[_LIES + 1 : -1]] == [True] * (len(records) - _LIES - 2)
    assert seen.agreement


def test_an_owner_that_claims_to_have_none_is_out_and_struck(monkeypatch: pytest.MonkeyPatch) -> None:
    """[A7, N3] Whether it is a liar or its machine is weak: jurors find an aggregate on the disclosed rows, and another owner
    makes it. No member is banned for it, and the model moves."""
    calls: list[int] = []

    def weak_once(rows_PD: Tensor, tau: float, code: Code) -> Tensor:
        calls.append(len(calls))
        return torch.zeros_like(rows_PD[0]) if len(calls) == 20 else _right(rows_PD, tau, code)

    _right: Callable[[Tensor, float, Code], Tensor] = step.aggregate
    monkeypatch.setattr(step, "aggregate", weak_once)
    seen = finished(dataclasses.replace(SPIKED, attack="sign-flip", attack_start=7))
    withheld = [(r, j) for r in _records(seen) for j in r.judgements if j.verdict == GuiltySide.WITHHELD]
    assert len(withheld) == 1
    ((record, judgement),) = withheld
    assert judgement.target in record.struck
    assert judgement.target in record.absent
    assert judgement.target not in record.banned
    assert record.updated
    assert not [ban for ban in seen.bans if ban.peer not in seen.byzantine]


def test_without_judging_itself_an_honest_owner_would_be_banned(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests above can fail. One owner announces whatever its weak solver gives."""
    announced: list[Tensor] = []

    def unjudged(rows_PD: Tensor, tau: float, _: Code) -> Tensor:
        center_D = _weak(rows_PD, tau=tau)
        if center_D is None and not announced:
            announced.append(rows_PD[0] + 1)
            return announced[0]
        return centered_clip(rows_PD, tau=tau)

    monkeypatch.setattr(step, "aggregate", unjudged)
    seen = finished(SPIKED)
    assert [ban.step for ban in seen.bans if ban.peer not in seen.byzantine] == [_LIES]
