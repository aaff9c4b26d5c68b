"""Bugs in checks, trials, audits and randomness (SPEC V1, V2, T1–T7, R1–R7, N2, B4)."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

from torch import Tensor

from tests.workshop.chaos.planted.replace import instead_of
from troth.clip.blocks import Code
from troth.clip.centered_clip import residual_tolerance
from troth.clip.fast import centered_clip
from troth.crypto import Seed
from troth.protocol.core.parts import opens
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import Coins, PendingAudits, Roles, SeededEntropy, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.step import audits as checks_module
from troth.protocol.step import conclude as conclude_module
from troth.protocol.step import disputes as disputes_module
from troth.protocol.step import step as step_module
from troth.protocol.step.attempt import Attempt, AttemptAborted
from troth.protocol.step.audits import suspicious_parts
from troth.protocol.step.trials import Trials, heard_audits
from troth.training.work import Training, TrainingWork

# Checks and trials


def v2_skipped() -> Any:
    return instead_of(suspicious_parts, lambda *_: set())


def v1_skipped() -> Any:
    return instead_of(disputes_module.wrong_reporters, lambda *_: [])


def v2_with_local_floats() -> Any:
    turn = count()

    def local(*given: Any) -> set[int]:
        share = 0.75 + 0.05 * (7 * next(turn) % 11)  # up to a quarter more or less

        def tolerance(*numbers: Any, **scales: Any) -> float:
            return share * residual_tolerance(*numbers, **scales)

        with patch.object(checks_module, "residual_tolerance", tolerance):
            return suspicious_parts(*given)

    return instead_of(suspicious_parts, local)


def banned_go_on_voting() -> Any:
    original = Roster.after

    def after(self: Roster, record: StepRecord) -> Roster:
        roster = original(self, record)
        return replace(roster, members=tuple(sorted({*roster.members, *(set(self.members) & set(record.banned))})))

    return patch.object(Roster, "after", after)


def speaks_without_judging_itself() -> Any:
    """Owners whose solver a huge number defeats announce what it gives."""

    def weak(rows_PD: Tensor, tau: float, code: Code) -> Tensor:
        return code.round_center(rows_PD[0] if float(rows_PD.abs().max()) > 1e5 else centered_clip(rows_PD, tau=tau))

    return instead_of(step_module.aggregate, weak)


def paths_unchecked() -> Any:
    return instead_of(opens, lambda *_: True)


def ban_one_step_early_at_one_peer() -> Any:
    original = conclude_module.conclude

    def early(attempt: Attempt[Any], *given: Any) -> Any:
        reduced, reported, accuses, trials, *more = given
        if attempt.context.peer.me == attempt.context.state.roster.members[0]:
            accuses = {peer: said for peer, said in accuses.items() if peer not in trials.banned}
        return original(attempt, reduced, reported, accuses, trials, *more)

    return instead_of(original, early)


# Audits and randomness


def audits_unheard() -> Any:
    return instead_of(heard_audits, lambda *_: ())


def _drawn_otherwise(change: Callable[[Roster, PendingAudits], tuple[Roster, PendingAudits]]) -> Any:
    def otherwise(run: Any, roster: Roster, randomness: Any, due: PendingAudits) -> Roles:
        changed, owed = change(roster, due)
        return draw_roles(run, changed, randomness, owed)

    return instead_of(draw_roles, otherwise)


def absent_not_audited() -> Any:
    def present(roster: Roster, due: PendingAudits) -> tuple[Roster, PendingAudits]:
        return roster, replace(due, contributors=tuple(p for p in due.contributors if p in roster.members))

    return _drawn_otherwise(present)


def owed_audits_dropped() -> Any:
    return patch.object(Trials, "owed_audits", lambda *_: ((), ()))


def liars_step_forgotten() -> Any:
    return patch.object(Trials, "_beside_liars", lambda *_: set())


def returned_not_audited() -> Any:
    return _drawn_otherwise(lambda roster, due: (replace(roster, returns=()), due))


def single_coin() -> Any:
    original = SeededEntropy.coins

    def single(self: SeededEntropy, step: int, attempt: int) -> Coins:
        return Coins(*2 * (original(self, step, attempt).a,))

    return patch.object(SeededEntropy, "coins", single)


def coin_reused() -> Any:
    original = Attempt.again

    def again(self: Attempt[Any], why: AttemptAborted) -> Attempt[Any]:
        return replace(original(self, why), coins=self.coins)

    return patch.object(Attempt, "again", again)


def walks_from_moments_of_their_own() -> Any:
    """Local steps go on from where the contributor's last ones ended, which nobody else knows (SPEC R2)."""

    async def gradient(self: TrainingWork, training: Training, seed: Seed, _step: int) -> Tensor:
        begun = Training(training.parameters_D, {**training.optimizer, **vars(self).get("own", {})})
        found_D = self.gradient_now(begun, seed)
        vars(self)["own"] = {"momentum": found_D}
        return found_D

    return patch.object(TrainingWork, "gradient", gradient)
