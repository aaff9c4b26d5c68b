"""Disputes of a step: findings of auditors and owners, the docket, and the recomputing behind every vote."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from troth.crypto import Digest, PeerId
from troth.protocol.core.channel import AttemptView, Disclose, Said
from troth.protocol.core.parts import ProvenPart
from troth.protocol.core.records import aggregate_message
from troth.protocol.core.roster import far_parts
from troth.protocol.core.state import AuditRecord, Disclosure
from troth.protocol.step.attempt import Attempt, Reduced, Reported
from troth.protocol.step.audits import ACCUSE_AT, audit, examine_part, report_errors, suspicious_parts
from troth.protocol.step.leaves import heard_checks
from troth.protocol.step.trials import (
    AUDIT_KINDS,
    Docket,
    Trials,
    audit_ballots,
    heard_owners,
    message_of,
    part_ballots,
)
from troth.protocol.wire.messages import (
    NO_BASIS,
    Accusation,
    Announced,
    Ballot,
    ChargeKind,
    Commit,
    Phase,
    Vote,
    said_as,
)

T = TypeVar("T")


async def audit_targets(attempt: Attempt[T]) -> list[Accusation]:
    """Recompute the work of this peer's targets: of the last step, and of earlier ones whose audit is pending.

    What is found wrong is recomputed again: kernels of accelerators have raced, and a false accusation ends in a ban.
    """
    context, found = attempt.context, []
    for due in context.roles.audits.get(context.peer.me, ()):
        if due.step not in context.state.audit_records:
            continue  # this peer has just come back: others audit this too, or will [R7]
        kept = context.state.audit_records[due.step]
        kind, root = await found_wrong(attempt, kept, due.target)
        if kind is not None and (kind, root) == await found_wrong(attempt, kept, due.target):  # [D1]
            message = context.peer.tools.digest(kept.accused(due.target, kind).envelope.payload)
            found.append(Accusation(due.target, kind, due.step, None, message))
    return found


async def found_wrong(attempt: Attempt[T], kept: AuditRecord[T], target: PeerId) -> tuple[ChargeKind | None, Digest]:
    """What this peer would accuse the target of, and the gradient that it computed in its place."""
    finding = await audit(attempt.context.peer, kept, target)
    return finding.accusation(bits_count=enough_of_my_class(attempt)), finding.root


def enough_of_my_class(attempt: Attempt[T]) -> bool:
    """Tell whether a quorum of the members computes the same bits as this peer: only they can judge by bits (SPEC D3)."""
    peer = attempt.context.peer
    if peer.run.parameters.deviation is None:
        return True
    alike = [said for said in attempt.commits.values() if said_as(said, Commit).hardware == peer.work.hardware_class()]
    return len(alike) >= attempt.context.state.roster.quorum


def wrong_reporters(attempt: Attempt[T], part: int, reduced: Reduced, reported: Reported) -> list[PeerId]:
    """Contributors whose report about this peer's part is wrong, recomputed from their committed parts, twice (SPEC V1)."""
    parameters, (start, stop) = attempt.context.peer.run.parameters, attempt.span(part)
    tools = attempt.context.peer.tools
    project = tools.projector(reduced.projection_key, parameters.projections, parameters.size)
    center_D, rows_PD = reduced.aggregate_D[start:stop], reduced.clipped.rows[part]
    said, tau = reported.table.about(part), attempt.context.taus[part]
    wrong_P = report_errors(rows_PD, center_D, project, start, said, tau) > ACCUSE_AT
    if not wrong_P.any():
        return []
    wrong_P &= report_errors(rows_PD, center_D, project, start, said, tau) > ACCUSE_AT
    me = attempt.context.peer.me
    return [peer for peer, wrong in zip(attempt.roots, wrong_P, strict=True) if wrong and peer != me]


def docket_of(attempt: Attempt[T], reduced: Reduced, reported: Reported, accuses: Said, trials: Trials) -> Docket:
    """Charges to vote on: accusations that are heard, and parts whose numbers look wrong."""
    context, state = attempt.context, attempt.context.state
    audits = trials.hear_audits(accuses, context.roles)
    reports = {peer: reported.announced[peer] for peer in attempt.roots}  # only contributors report
    charges = heard_owners(accuses, state.step, attempt.owners, reports, context.peer.tools)
    centers = [reduced.clipped.centers[part] for part in range(len(attempt.owners))]
    doubted = suspicious_parts(reported.table, centers, context.taus, context.roles.bounds)  # [V2]
    doubted |= far_parts(reported.table, attempt.length, context.taus, context.roles.bounds)  # [V3]
    checks = heard_checks(attempt, reduced, accuses)  # [V4]
    doubted |= checks.keys()
    disputed = doubted | {charge.part for charge in charges if charge.part is not None}
    owners, tools = {part: attempt.owners[part] for part in sorted(disputed)}, context.peer.tools
    clips = {peer: message_of(said, tools) for peer, said in reduced.clipped.clips.items() if peer in owners.values()}
    heard = {peer: message_of(said, tools) for peer, said in accuses.items() if peer in owners.values()}
    return Docket(
        step=state.step,
        brought=(*audits, *charges),
        owners=owners,
        doubted=frozenset(doubted),
        checks=checks,
        contributors=frozenset(attempt.roots),
        aggregates={part: aggregate_message(clips[owner], heard.get(owner)) for part, owner in owners.items()},
        reports={peer: message_of(report, tools) for peer, report in reports.items()} if owners else {},
        peers=state.roster.admitted,
        silent=frozenset(owners.values()) - accuses.keys(),
        empty=frozenset(part for part, center in enumerate(centers) if center.norm == 0),
    )


async def vote(
    attempt: Attempt[T], docket: Docket, disclose: Callable[[AttemptView], Awaitable[list[Ballot]]] | None = None
) -> Said:
    """Recompute the disputed work and announce ballots; skipped if there are no charges and no numbers look wrong.

    `disclose` gives the ballots on disputed parts, of which the closing step has none.
    """
    context, kept = attempt.context, attempt.context.state.audit_records
    audits = [charge for charge in docket.brought if charge.kind in AUDIT_KINDS]
    if not audits and not docket.owners:
        return {}
    cast: list[Ballot] = []
    targets = {(charge.step, charge.target) for charge in audits}
    work = {"audits": len(targets), "disputed": len(docket.owners)}
    view = context.view(attempt.members, admitted=attempt.admitted, **work)
    for step, target in sorted(targets) if not context.peer.observing else ():
        if step in kept:  # else this peer was no member then, and cannot tell
            finding = await audit(context.peer, kept[step], target)
            state = NO_BASIS if kept[step].content else context.peer.work.digest(kept[step].training)  # [U5]
            for charge in audits:
                if (charge.step, charge.target) == (step, target):
                    cast += audit_ballots(kept[step], charge, finding, context.peer.tools, state)
    if docket.owners and disclose is not None and not context.peer.observing:
        cast += await disclose(view)
    message = Vote(tuple(dict.fromkeys(cast)))
    votes = await context.peer.channel.announce(attempt.slot(Phase.VOTE), message, view)
    return {peer: votes[peer] for peer in sorted(attempt.members & votes.keys())}


async def disputed_ballots(
    attempt: Attempt[T],
    reduced: Reduced,
    reported: Reported,
    accuses: Said,
    docket: Docket,
    trials: Trials,
    view: AttemptView,
) -> list[Ballot]:
    """Receive the parts that owners disclose, and judge owner and reporters of each disputed part by them."""
    owners = sorted(docket.owners.items())
    charges = [charge for charge in docket.brought if charge.kind == ChargeKind.REPORT]
    mine = {part: attempt.arrived(part) for part in attempt.my_parts if part in docket.owners}
    channel, slot = attempt.context.peer.channel, attempt.slot(Phase.VOTE)
    disclosed = await channel.exchange(slot, Disclose(mine, owners, len(attempt.roots)), view)
    cast: list[Ballot] = []
    for part, owner in owners:
        named = [charge for charge in charges if charge.part == part] if owner in accuses else None
        proven_parts = disclosed[part, owner]
        finding = examine_part(attempt, part, proven_parts, reduced, reported)
        if finding is not None:
            trials.disclosed += (exhibit(attempt, part, proven_parts, reduced, reported, accuses.get(owner)),)  # [E3]
        cast += part_ballots(docket, part, named, finding)
    return cast


def exhibit(
    attempt: Attempt[T],
    part: int,
    proven_parts: Mapping[PeerId, ProvenPart],
    reduced: Reduced,
    reported: Reported,
    accuse: Announced | None,
) -> Disclosure:
    """Messages and parts from which anyone recomputes a ban over this part: all signed, or hashed in a signed message."""
    clipped = reduced.clipped
    return Disclosure(
        attempt=attempt.number,
        part=part,
        commits={peer: attempt.commits[peer] for peer in attempt.roots},
        clip=clipped.clips[attempt.owners[part]],
        reports={peer: reported.announced[peer] for peer in attempt.roots},
        accuse=accuse,
        projection_key=reduced.projection_key,
        aggregates=reduced.digests,
        center=clipped.held[part],
        proven_parts={peer: proven_parts[peer] for peer in attempt.roots},
    )
