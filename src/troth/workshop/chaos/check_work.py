"""Work: audits that were drawn are made or owed, and a lie that is audited is a ban; each part of an update is the clipped centre
of what was committed, and no update goes far from honest gradients."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from troth.clip.centered_clip import judge_center
from troth.clip.rounded_center import ACCUSE_ROUNDING, acquits
from troth.crypto import PeerId
from troth.protocol.core.parts import commit_parts
from troth.protocol.core.records import MOST_OWED
from troth.protocol.core.roles import (
    NO_PENDING_AUDITS,
    AuditDuty,
    PendingAudits,
    Roles,
    draw_roles,
    first_randomness,
    gradient_seed,
)
from troth.protocol.core.roster import Roster, lower_median, part_taus
from troth.protocol.core.state import Outcome
from troth.protocol.step.leaves import draw_leaves
from troth.protocol.step.trials import AUDIT_KINDS
from troth.protocol.wire.messages import Accuse, GuiltySide
from troth.specs import parse_spec
from troth.training.work import Training
from troth.workshop.attacks import ATTACKS
from troth.workshop.chaos.plan import HONEST, LAZY
from troth.workshop.chaos.world import World, forged


@dataclass(frozen=True)
class _Drawn:
    """One step with the roles that its roster draws, computed again from the outcome before."""

    outcome: Outcome[Training]
    roster: Roster
    pending: PendingAudits
    roles: Roles

    @property
    def step(self) -> int:
        return self.outcome.record.step


def _drawn_steps(world: World) -> Iterator[_Drawn]:
    pending, randomness, roster = NO_PENDING_AUDITS, first_randomness(world.run)[0], Roster.founding(world.run)
    incarnation = 0
    for outcome in world.witness:
        record = outcome.record
        pending = pending if record.incarnation == incarnation else replace(pending, everyone=True)
        yield _Drawn(outcome, roster, pending, draw_roles(world.run, roster, randomness, pending))
        pending, randomness, roster = PendingAudits.after(record), outcome.state.randomness, outcome.state.roster
        incarnation = record.incarnation


def caught(world: World) -> list[str]:
    """A peer that lied about a gradient, and was audited by an honest peer that was heard, is banned in that step."""
    broken = []
    lies: dict[int, set[bytes]] = {}
    for drawn in _drawn_steps(world):
        record, audits_by = drawn.outcome.record, drawn.roles.audits
        lies[record.step] = {peer for peer in record.contributors if (peer, record.step) in world.forged}
        heard = drawn.outcome.state.audit_records[record.step].accuses.keys()
        for auditor in world.honest & set(audits_by) & heard:
            for audit in audits_by[auditor]:
                if audit.target in lies.get(audit.step, ()) and audit.target not in record.banned:
                    broken.append(
                        f"step {record.step}: {world.name(audit.target)} lied in step {audit.step}, was audited, and stays"
                    )
    return broken


def audits(world: World) -> list[str]:
    """Auditors do what they were drawn for; a lost audit is owed; who worked beside a liar, or came back, is audited."""
    broken = []
    for drawn in _drawn_steps(world):
        found = (
            *_not_as_drawn(world, drawn),
            *_lost(world, drawn),
            *_beside(world, drawn),
            *_first_step_back(world, drawn.step),
        )
        broken += [f"step {drawn.step}: {text}" for text in found]
    return broken


def _not_as_drawn(world: World, drawn: _Drawn) -> Iterator[str]:
    """SPEC R4, R6, R7."""
    step = drawn.step
    keys = {world.numbers[peer]: peer for peer in drawn.roster.members if peer in world.numbers}
    for number, outcomes in sorted(world.outcomes.items()):
        if step in outcomes and number in keys and not outcomes[step].observed:
            wanted, audited = drawn.roles.audits.get(keys[number], ()), outcomes[step].audited
            if set(audited) != set(wanted):
                yield f"{number} was drawn to audit {len(wanted)} others, and audited {len(audited)}, not the same"


def _lost(world: World, drawn: _Drawn) -> Iterator[str]:
    """An audit that came to nothing is owed, and after the third time dropped; the record says both (SPEC R7)."""
    record, heard = drawn.outcome.record, drawn.outcome.accuses[min(drawn.outcome.accuses)]
    dismissed = {
        AuditDuty(PeerId(j.target), j.step) for j in record.judgements if j.kind in AUDIT_KINDS and j.verdict is None
    }
    done = {audit for auditor in heard for audit in drawn.roles.audits.get(auditor, ())} - dismissed
    dealt = {audit for mine in drawn.roles.audits.values() for audit in mine}
    banned = {*drawn.roster.banned, *record.banned}
    before = {(owed.target, owed.step): owed.times for owed in drawn.pending.owed}
    owed = {(owed.target, owed.step) for owed in record.owed}
    for audit in sorted(dealt - done, key=lambda audit: (audit.target, audit.step)):
        if audit.target in banned or (audit.target, audit.step) in owed:
            continue
        if before.get((audit.target, audit.step), 0) < MOST_OWED:
            yield f"the audit of {world.name(audit.target)} came to nothing, and is not owed"
        elif audit.target not in record.unaudited:
            yield f"the audit of {world.name(audit.target)} came to nothing too often, and nobody says so"


def _beside(world: World, drawn: _Drawn) -> Iterator[str]:
    """After a ban everyone audits; if it was a validator that found the liar, all who contributed beside it too (SPEC R6, R8)."""
    record, step = drawn.outcome.record, drawn.pending.step
    if set(record.banned) & set(drawn.roster.members) and not PendingAudits.after(record).everyone:
        yield "a member was banned, and the next step is like any other"
    convicted = {
        j.target
        for j in record.judgements
        if j.kind in AUDIT_KINDS and (j.step, j.verdict) == (step, GuiltySide.ACCUSED)
    }
    if not drawn.roles.validators or convicted.isdisjoint(drawn.pending.contributors):
        return
    owed = {audit.target for audit in record.owed if audit.step == step}
    for peer in sorted(set(drawn.pending.contributors) - {*drawn.roster.banned, *record.banned, *owed}):
        yield f"{world.name(peer)} contributed beside a liar in step {step}, and is not audited for it"


def _first_step_back(world: World, step: int) -> Iterator[str]:
    """A member back since two steps worked in the last one, and is audited now (SPEC B4), if all validators are honest."""
    if step < 2:
        return
    record, before, came = world.records[step], world.records[step - 1], world.records[step - 2].returned
    validators = {peer for peer in record.members if peer not in record.contributors}
    if before.struck or before.banned or not validators <= world.honest or record.incarnation != before.incarnation:
        return
    theirs = [world.outcomes[world.numbers[PeerId(peer)]].get(step) for peer in validators]
    if not theirs or None in theirs:
        return  # some were lost on the way, and their audits with them
    audited = {audit.target for outcome in theirs if outcome for audit in outcome.audited if audit.step == step - 1}
    for peer in sorted({PeerId(rejoin.key) for rejoin in came if rejoin.key in before.contributors} - audited):
        if peer not in before.banned and peer not in {owed.target for owed in record.owed}:
            yield f"{world.numbers.get(peer)} is back, and nobody audits its first step"


# Updates

# P contributors, C honest contributors, D coordinates

_FARTHEST = 4.0  # usual lengths that an aggregate may be away from the contributors (SPEC V3)
_LEAST_SHARE = 0.05  # of a whole gradient's length, for parts that are nearly zero
_LONGEST = 2.0  # usual lengths that an update may have
_LOOKS_BACK = 64
_ROUNDING = 1e-3
MOMENTUM = 0.9  # of the optimizer of these worlds


def aggregates(world: World) -> list[str]:
    """Every part is the clipped centre of what contributors committed to: clipping bounds the harm of every step.

    Colluders that cover for each other pass, for their own parts alone, until they are audited (SPEC T7). `harm` bounds how
    far those parts may be off. What a lazy stranger committed to that liars let in is known to nobody here. A code's rounding
    is judged as a whole, and number by number where an honest member looked (SPEC V4).
    """
    lazy = {peer for peer, number in world.numbers.items() if world.plan.strangers.get(number, (0, HONEST))[1] in LAZY}
    covers = {number: ATTACKS[parse_spec(attack)[0]].covers for number, attack in world.plan.attacks.items()}
    covering = {peer for peer, number in world.numbers.items() if covers.get(number)}
    broken, code = [], world.run.parameters.coding
    for drawn in _drawn_steps(world):
        outcome = drawn.outcome
        if not outcome.record.updated or lazy & set(map(PeerId, outcome.record.contributors)):
            continue
        record, kept = outcome.record, outcome.state.audit_records[outcome.record.step]
        rows = []
        for peer in map(PeerId, record.contributors):
            gradient_D = world.right_gradient(outcome, peer)
            lies, seed = (peer, record.step) in world.forged, gradient_seed(kept.seed_randomness, peer)
            sent_D = forged(gradient_D, seed, world.plan) if lies else gradient_D
            rows.append(commit_parts(sent_D, kept.bounds, code=code, seed=seed).numbers_D)
        rows_PD, looked_at = torch.stack(rows), _looked_at(world, drawn)
        for part, ((start, stop), tau) in enumerate(
            zip(pairwise(kept.bounds), part_taus(kept.tau, kept.bounds), strict=True)
        ):
            if kept.owners[part] in covering:
                continue
            center_D, part_PD = kept.aggregate_D[start:stop], rows_PD[:, start:stop]
            if acquits(part_PD, center_D, tau=tau, code=code, share=2):
                continue
            rounding = ACCUSE_ROUNDING * code.rounding(center_D)
            residual, tolerance = judge_center(part_PD, center_D, tau=tau, rounding=rounding)
            if residual > tolerance or not code.rounds_centers:
                broken.append(f"step {record.step}: the aggregate of part {part} is not the clipped centre")
            elif part in looked_at:
                broken.append(f"step {record.step}: part {part} has a number that is not where the rows pull it")
    return broken


def _looked_at(world: World, drawn: _Drawn) -> set[int]:
    """Parts of which an honest member saw the drawn leaf, which is all of them in worlds as small as these (SPEC V4)."""
    code, outcome = world.run.parameters.coding, drawn.outcome
    record, kept = outcome.record, outcome.state.audit_records[drawn.step]
    heard = outcome.accuses[outcome.attempts - 1]
    if not code.rounds_centers or {*record.banned, *record.expelled} & set(record.members) - heard.keys():
        return set()  # some of these were out of the last attempt, and nothing says which
    members = {PeerId(peer) for peer in record.members if peer in heard or peer not in record.absent}
    about = kept.owners, kept.bounds, code.rows, members, drawn.roster.disputed_links()
    found = set()
    for draw in draw_leaves(kept.projection_key, *about):
        for checker in world.honest & heard.keys() & set(draw.checkers):
            said = heard[checker].message
            if isinstance(said, Accuse) and kept.owners[draw.part] not in said.unheard:
                found.add(draw.part)
    return found


def harm(world: World) -> list[str]:
    """Every part is within reach of an honest contributor, and every update is about as long as honest gradients are.

    Medians over contributors lie between honest extremes where liars are fewer than half of them; with more, beyond the
    full guarantee, nobody can say what the model is worth.
    """
    broken: list[str] = []
    applied: list[float] = []
    for outcome in world.witness:
        honest = [peer for peer in map(PeerId, outcome.record.contributors) if peer in world.honest]
        moved_D = applied_gradient(outcome)
        if 2 * len(honest) > len(outcome.record.contributors):
            rows_CD = torch.stack([world.right_gradient(outcome, peer) for peer in honest]).double()
            found = [*_far_parts(outcome, rows_CD), *_too_long(outcome, rows_CD, moved_D, applied)]
            broken += [f"step {outcome.record.step}: {what}" for what in found]
        applied = [*applied, float(moved_D.norm())][-_LOOKS_BACK:] if outcome.record.updated else applied
    return broken


def applied_gradient(outcome: Outcome[Training]) -> Tensor:
    """Gradient that the optimizer was given, as its state shows it: whatever was clipped on the way, this moved the model."""
    before, after = outcome.state.audit_records[outcome.record.step].training, outcome.state.training
    return after.optimizer["momentum"].double() - MOMENTUM * before.optimizer["momentum"].double()


def _far_parts(outcome: Outcome[Training], rows_CD: Tensor) -> Iterator[str]:
    kept = outcome.state.audit_records[outcome.record.step]
    if not outcome.record.updated:
        return
    spans, whole = list(pairwise(kept.bounds)), float(rows_CD.norm(dim=1).max())
    for part, ((start, stop), tau) in enumerate(zip(spans, part_taus(kept.tau, kept.bounds), strict=True)):
        part_CD, share = rows_CD[:, start:stop], ((stop - start) / kept.bounds[-1]) ** 0.5
        nearest = float((part_CD - kept.aggregate_D[start:stop].double()).norm(dim=1).min())
        most = _FARTHEST * max(float(part_CD.norm(dim=1).max()), tau, _LEAST_SHARE * share * whole)
        if not nearest <= most * (1 + _ROUNDING):
            yield f"part {part} is {nearest:.3g} away from all honest contributors, at most {most:.3g}"


def _too_long(outcome: Outcome[Training], rows_CD: Tensor, moved_D: Tensor, applied: list[float]) -> Iterator[str]:
    if not outcome.record.updated:
        return
    usual = max(float(rows_CD.norm(dim=1).max()), outcome.record.tau, lower_median(applied) if applied else 0.0)
    length = float(moved_D.norm())
    if not length <= _LONGEST * usual * (1 + _ROUNDING):
        yield f"an update of length {length:.3g}, at most {_LONGEST * usual:.3g}"
