"""The first step after a return is audited, and bans around it are proved (SPEC B4)."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from torch import Tensor

from tests.protocol.returning_members import LOST, PEERS, RUN
from tests.protocol.scripted_world import WorldRun, peer_ids, plan, run_world
from troth.crypto import Digest, Identity, PeerId, Seed, derive
from troth.evidence.bans import History
from troth.evidence.verify import Proof, verify_ban
from troth.protocol.core.roles import AuditDuty, PendingAudits, draw_roles, gradient_seed
from troth.protocol.core.roster import Roster
from troth.protocol.step import attempt as ahead_module
from troth.protocol.wire.messages import ChargeKind
from troth.training.work import Training, TrainingWork
from troth.workshop.simulation.exchange import DropOut


@contextmanager
def _forging(key: PeerId) -> Iterator[None]:
    """Make the member with this key send wrong gradients."""
    right = TrainingWork.gradient
    seeds: set[Seed] = set()

    async def gradient(self: TrainingWork, training: Training, seed: Seed, step: int) -> Tensor:
        return await right(self, training, seed, step) * (-10.0 if seed in seeds else 1.0)

    def noted(randomness: Digest, peer: PeerId) -> Seed:
        seed = gradient_seed(randomness, peer)
        if peer == key:
            seeds.add(seed)
        return seed

    with patch.object(TrainingWork, "gradient", gradient), patch.object(ahead_module, "gradient_seed", noted):
        yield


def _proofs(seen: WorldRun) -> list[Proof]:
    """Proofs of all bans, from the files that a member would write."""
    history = History(seen.world.run)
    return [verify_ban(evidence.text) for outcome in seen.world.witness for evidence in history.add(outcome)]


@pytest.mark.long
def test_a_returning_member_that_lies_in_its_first_step_is_audited_for_certain_and_the_proof_holds() -> None:
    """[B4, E1] Under a new key, which a stranger finds in the history of the evidence, and as a target that was drawn."""
    successor = Identity.from_secret(derive(1, "incarnation", LOST)).peer
    with _forging(successor):
        made = plan(liars=(), peers=7, steps=11, crashes={LOST: DropOut(2, 4, 5.0, journal=False)})
        seen = run_world(dataclasses.replace(made, byzantine=1))  # else its ban would end the run [G4]
    ((back, _),) = seen.returned.items()
    assert successor in seen.records[back + 1].contributors
    (proof,) = _proofs(seen)
    assert (proof.banned, proof.step, proof.judgement.kind) == (successor, back + 2, ChargeKind.GRADIENT)
    assert proof.judgement.step == back + 1
    assert successor not in seen.records[back + 3].members


@pytest.mark.long
def test_bans_of_others_after_a_return_are_proved_too() -> None:
    """[B3, E1] The history holds who came back, under which key: members and majorities follow from it."""
    crashes = {LOST: DropOut(1, 4, 5.0, journal=False)}
    seen = run_world(plan(liars=(), forge_from={0: 7}, crashes=crashes, steps=16, seed=4))
    ((back, _),) = seen.returned.items()
    (proof,) = _proofs(seen)
    assert back + 2 < proof.step
    assert (proof.banned, proof.members) == (peer_ids(4, 5)[0], 5)


def test_the_first_step_of_a_returning_member_is_audited_beside_those_drawn() -> None:
    """[B4] In the step after it, once, by a validator; whatever was drawn."""
    back = PEERS[3]
    roster = Roster(tuple(PEERS), returns=((5, back),))
    audited = 0
    for seed in range(200):
        roles = draw_roles(RUN, roster, Digest(derive(seed, "roles")), PendingAudits(6, tuple(PEERS)))
        drawn = [(auditor, audit) for auditor, audits in roles.audits.items() for audit in audits]
        assert len(drawn) == len(set(drawn))
        audited += sum(audit == AuditDuty(back, 6) for _, audit in drawn)
        assert all(auditor in roles.validators or auditor != audit.target for auditor, audit in drawn)
        later = draw_roles(RUN, roster, Digest(derive(seed, "roles")), PendingAudits(7, tuple(PEERS)))
        assert sum(map(len, later.audits.values())) == 1
    assert audited > 150


def test_a_returning_member_has_observed_two_steps() -> None:
    """[B4, K1] So it can audit and judge in its first step as member."""
    seen = run_world(plan(liars=(), crashes={LOST: DropOut(2, 4, 5.0, journal=True)}, steps=9)).check_promises()
    ((back, _),) = seen.returned.items()
    own = seen.world.outcomes[LOST]
    assert {back - 1, back, back + 1} <= own.keys()
    assert set(own[back].state.audit_records) == {back - 1, back}


def test_the_first_step_is_audited_even_if_only_that_one_is_drawn_as_validator() -> None:
    """[B4] It cannot audit itself: somebody else has to."""
    back = PEERS[3]
    roster = Roster(tuple(PEERS), returns=((5, back),))
    for seed in range(100):
        roles = draw_roles(RUN, roster, Digest(derive(seed, "roles")), PendingAudits(6, tuple(PEERS)))
        assert any(audit == AuditDuty(back, 6) for audits in roles.audits.values() for audit in audits)
