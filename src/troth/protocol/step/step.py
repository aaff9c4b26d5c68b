"""One training step as a member runs it: Algorithm 1 of the paper, top to bottom.

Clauses in brackets are those of SPEC.md. Announcements reach all members alike; what each of them says may be a lie, or
nothing at all.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from troth.aggregation import centered_clip
from troth.crypto import Digest, PeerId, Signature, coin_commitment
from troth.protocol.core.channel import Delivery
from troth.protocol.core.coins import combine
from troth.protocol.core.errors import LeftOutError, StalledError
from troth.protocol.core.parts import CommittedParts, ProvenPart, commit_parts, opens, rows_of
from troth.protocol.core.records import Returned, StepRecord, aggregate_message, record_bytes_to_sign
from troth.protocol.core.rejoin import returning, right_requests
from troth.protocol.core.roles import PendingAudits, gradient_seed
from troth.protocol.core.roster import scales_after
from troth.protocol.core.scales import far_parts, pooled_norm, update_factor, whole_norm
from troth.protocol.core.state import AuditRecord, Disclosure, LastRecord, Outcome, Peer, State
from troth.protocol.step.attempt import Announcements, Attempt, AttemptAborted, Clipped, Reduced, Reported, StepContext
from troth.protocol.step.audits import audit, examine_part, report_errors
from troth.protocol.step.checks import suspicious_parts
from troth.protocol.step.deliveries import agreed_centers, bitmap, fitting, lacking, undecided_aggregates
from troth.protocol.step.link_disputes import LinkDisputes
from troth.protocol.step.reports import ACCUSE_AT, CONVICT_AT, make_report
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
    Accusation,
    Accuse,
    Announced,
    Ballot,
    Center,
    Clip,
    Commit,
    Confirm,
    Kind,
    Malformed,
    Phase,
    Report,
    ReportNumbers,
    Reveal,
    SignedRejoin,
    Vote,
    said_as,
)
from troth.protocol.wire.primitives import from_blob, to_blob

# P parts, D coordinates
T = TypeVar("T")


async def run_step(peer: Peer[T], state: State[T]) -> Outcome[T]:
    """Commit; clip, reveal, report, accuse and vote, again without whoever cheats or vanishes; move the model."""
    context = StepContext.at(peer, state)  # roles [R2–R7]
    gradient_D = await compute_gradient(context)  # [R2]
    parts = commit_parts(gradient_D, context.roles.bounds, peer.tools) if gradient_D is not None else None  # [C1]
    attempt = await commit(context, parts)  # [C1, C2]
    trials, link_disputes = Trials(context.state.roster), LinkDisputes(context.state.roster, context.state.step)
    while True:
        try:
            attempt = await scatter(attempt, parts)  # [C3, N1]
            attempt = await hand_round(attempt, parts)  # [N5, F2]
            clipped = await clip(attempt)  # [A1, A2]
            reduced = await reveal(attempt, clipped, link_disputes)  # [A3, A4]
            reported = await report(attempt, reduced, parts)  # [A5]
            accuses = await check_and_accuse(attempt, reduced, reported, trials)  # [V1, D1–D3, T1]
            link_disputes.hear(accuses, attempt.members)  # [F1, F3]
            docket = docket_of(attempt, reduced, reported, accuses, trials)  # [V2, V3, T1, T2]
            disclose = partial(disputed_ballots, attempt, reduced, reported, accuses, docket, trials)
            votes = await vote(attempt, docket, disclose)  # [T3, T6]
            trials.judge(attempt.number, accuses, votes, docket)  # [T4]
            break
        except AttemptAborted as aborted:
            link_disputes.did_not_come(aborted.missed, attempt.members)  # [F1]
            attempt = attempt.again(aborted)  # [N1, N2, N4]
    return conclude(attempt, reduced, reported, accuses, trials, link_disputes)  # [R1, G2, U1–U3, K1, T5, B3]


async def compute_gradient(context: StepContext[T]) -> Tensor | None:
    """Contributors compute on the seed that the randomness before last gave them; validators do not contribute."""
    if not context.contributes:
        return None
    seed = gradient_seed(context.state.earlier_randomness, context.peer.me)
    return await context.peer.work.gradient(context.state.training, seed, context.state.step)


async def commit(context: StepContext[T], parts: CommittedParts | None) -> Attempt[T]:
    """Gradient and both coins, before anyone knows what will be asked."""
    peer, slot, coins = context.peer, context.slot(Phase.COMMIT), context.peer.entropy.coins(context.state.step, 0)
    peer.channel.enter(context.entry(frozenset(context.state.roster.members)))
    message = Commit(
        root=parts.root if parts else None,
        coin_a=coin_commitment(coins.a, slot, peer.me, "A"),
        coin_b=coin_commitment(coins.b, slot, peer.me, "B"),
        hardware=peer.work.hardware_class() if peer.run.parameters.deviation is not None else None,
        rejoins=tuple(requests(context)),  # [B3]
        took=peer.channel.took(),  # [Q8]
        length=None if parts is None else whole_norm(parts.part_lengths.tolist()),  # [V3]
        signature=sign_last(context),  # [U2]
    )
    return Attempt.first(context, coins, await peer.channel.announce(slot, message))


def requests(context: StepContext[T]) -> list[SignedRejoin]:
    """Of those who knocked, whoever is absent at the start of this step."""
    slot, peer = context.slot(Phase.REJOIN), context.peer
    return right_requests(slot, peer.channel.rejoins(context.state.step), context.state.roster, peer.tools)


def sign_last(context: StepContext[T]) -> Signature | None:
    """The record of the step before becomes certain with this step's Commits."""
    last, peer = context.state.last, context.peer
    if last is None or peer.me not in last.record.members:
        return None
    return peer.identity.sign(record_bytes_to_sign(peer.run.id, last.record.step, peer.me, last.digest))


async def scatter(attempt: Attempt[T], parts: CommittedParts | None) -> Attempt[T]:
    """Every part to its owner, or to whoever carries it there; in a later attempt those whose owner is out."""
    me, channel, relays = attempt.context.peer.me, attempt.context.peer.channel, attempt.relays
    moved = {part: owner for part, owner in enumerate(attempt.owners) if attempt.newly_owned(part)}
    to = {part: relays.get((part, me)) or owner for part, owner in moved.items()}
    proven_parts = {part: (to[part], parts.proven_parts[part]) for part in moved} if parts else {}
    awaited = {part: frozenset(attempt.roots) for part in attempt.my_parts if part in moved}
    carried = {delivery for delivery, relay in relays.items() if relay == me}
    for part in {part for part, _ in carried}:
        awaited[part] = frozenset(who for about, who in carried if about == part)
    most = max(map(len, attempt.context.roles.audits.values()), default=0)
    back = frozenset(PeerId(rejoin.key) for rejoin in returning_after(attempt))
    far = far_aggregates(attempt)
    channel.enter(attempt.context.entry(attempt.members, awaited=awaited, far=far, admitted=back, audits=most))
    arrived = await channel.scatter(attempt.slot(Phase.CLIP), proven_parts)
    found = [((part, who), arrived[part][who]) for part, who in carried if who in arrived.get(part, {})]
    return attempt.receiving(arrived).carrying(found)


def far_aggregates(attempt: Attempt[T]) -> dict[int, frozenset[PeerId]]:
    """Whom to ask for aggregates of those who are apart from this peer: one relay, or everyone where there is none."""
    me = attempt.context.peer.me
    far = {
        part: attempt.relay(me, who)
        for part, who in enumerate(attempt.owners)
        if who in attempt.context.disputed_links.get(me, ())
    }
    return {part: attempt.members if relay is None else frozenset({relay}) for part, relay in far.items()}


async def hand_round(attempt: Attempt[T], parts: CommittedParts | None) -> Attempt[T]:
    """Where a part does not reach its owner, its contributor hands it to everyone, and everyone passes it on."""
    deliveries = {*attempt.handed_round, *attempt.relays}
    if not deliveries or attempt.context.peer.observing:
        return attempt
    channel, slot = attempt.context.peer.channel, attempt.slot(Phase.CLIP)
    if attempt.handed_round:
        attempt = attempt.carrying(await shown_to_all(attempt, parts))
    passed_on = {delivery: (attempt.owners[delivery[0]], proven) for delivery, proven in attempt.witnessed.items()}
    wanted = [delivery for delivery in sorted(deliveries) if delivery[0] in attempt.my_parts]
    return attempt.served(await channel.pass_on(slot, passed_on, wanted, attempt.fits))


async def shown_to_all(attempt: Attempt[T], parts: CommittedParts | None) -> list[tuple[Delivery, ProvenPart]]:
    """Contributors hand round what owners miss; what stayed undecided is handed round by everyone who has it (SPEC N6)."""
    me, deliveries, undecided = attempt.context.peer.me, attempt.handed_round, attempt.undecided
    mine: dict[int, dict[PeerId, ProvenPart]] = {}
    for part, who in deliveries:
        if (part, who) in attempt.witnessed:
            mine.setdefault(part, {})[who] = attempt.witnessed[part, who]
        elif parts and who == me:
            mine.setdefault(part, {})[me] = parts.proven_parts[part]
    holders = {(part, holder) for (part, _), who in undecided.items() for holder in who}
    disputed_links = attempt.context.disputed_links.get(me, frozenset())  # these hand nothing to me; others will
    wanted = sorted(showing for showing in {*deliveries, *holders} if showing[1] not in disputed_links)
    count = 1 + len(undecided)  # nobody knows how many will come: with such, all wait as long as it may take
    shown = await attempt.context.peer.channel.disclose(attempt.slot(Phase.CLIP), mine, wanted, count)
    found = [((part, who), proven) for (part, _), proven_parts in shown.items() for who, proven in proven_parts.items()]
    return [(delivery, proven) for delivery, proven in found if delivery in deliveries]


async def clip(attempt: Attempt[T]) -> Clipped:
    """Every owner clips its part of everyone's gradient; everyone collects the aggregates."""
    context, channel = attempt.context, attempt.context.peer.channel
    arrived = {part: arrived_parts(attempt, part) for part in attempt.my_parts}  # [C3]
    missing = sorted({peer for proven_parts in arrived.values() for peer in attempt.roots.keys() - proven_parts.keys()})
    whole = {part: proven_parts for part, proven_parts in arrived.items() if len(proven_parts) == len(attempt.roots)}
    rows = {part: rows_of(list(proven_parts.values())) for part, proven_parts in whole.items()}
    blobs = {part: to_blob(centered_clip(rows_PD, tau=context.taus[part])) for part, rows_PD in rows.items()}  # [A1]
    message = clip_message(attempt, blobs, missing)
    said = await channel.announce(attempt.slot(Phase.CLIP), message)  # [A2, N2]
    clips = {peer: clip for peer, clip in said.items() if counts_as_clip(attempt, said_as(clip, Clip))}
    centers = agreed_centers(attempt, clips)  # [N1, N5]
    wanted = {part: Digest(center.digest) for part, center in centers.items()}
    gathered = await channel.gather(attempt.slot(Phase.CLIP), blobs, wanted)
    return Clipped(clips, centers, fitting(attempt, gathered, centers), rows)


def arrived_parts(attempt: Attempt[T], part: int) -> dict[PeerId, ProvenPart]:
    """What hashes to the signed root is what a contributor stands for; in the order of keys."""
    bounds, tools, received = attempt.context.roles.bounds, attempt.context.peer.tools, attempt.received.get(part, {})
    return {
        contributor: received[contributor]
        for contributor, root in attempt.roots.items()
        if contributor in received and opens(received[contributor], part, bounds, root, tools)
    }


def clip_message(attempt: Attempt[T], blobs: Mapping[int, bytes], missing: list[PeerId]) -> Clip:
    """Digest and norm of every aggregate; from the second attempt on with commitments to fresh coins."""
    slot, me, tools = attempt.slot(Phase.CLIP), attempt.context.peer.me, attempt.context.peer.tools
    norms = {part: tools.aggregate_norm(blob) for part, blob in sorted(blobs.items())}
    told = tuple(Center(part, tools.digest(blobs[part]), norm) for part, norm in norms.items() if norm is not None)
    a, b = (coin_commitment(coin, slot, me, name) for coin, name in ((attempt.coins.a, "A"), (attempt.coins.b, "B")))
    seen = bitmap([delivery in attempt.witnessed for delivery in attempt.to_witness(me)])
    if not attempt.number:
        return Clip(told, missing=tuple(missing), witnessed=seen, basis=attempt.basis)
    return Clip(told, a, b, tuple(missing), seen, attempt.basis)


def counts_as_clip(attempt: Attempt[T], said: Clip) -> bool:
    """Made from the agreed gradients, and from the second attempt on with fresh coins (SPEC E2, N2)."""
    return said.basis == attempt.basis and (attempt.number == 0 or None not in (said.coin_a, said.coin_b))


async def reveal(attempt: Attempt[T], clipped: Clipped, link_disputes: LinkDisputes) -> Reduced:
    """Coin A is opened only now, so nobody could fit a gradient or an aggregate to the projections."""
    context, channel, parts = attempt.context, attempt.context.peer.channel, range(len(attempt.owners))
    message = Reveal(attempt.coins.a, bitmap([part in clipped.held for part in parts]))
    reveals = await channel.announce(attempt.slot(Phase.REVEAL), message)
    coins = attempt.right_coins(
        "A", clipped.clips, {peer: said_as(said, Reveal).coin for peer, said in reveals.items()}
    )
    attempt.expect(coins)  # [N1]
    held = {peer: said_as(reveals[peer], Reveal).held for peer in coins}
    undecided = undecided_aggregates(attempt, held, parts)  # whoever's machine stopped is out, and apart from nobody
    link_disputes.did_not_come(lacking(attempt, held), attempt.members)  # [F1]
    clipped = await fetch(attempt, clipped, Phase.REVEAL, held)
    if undecided:
        clipped = await confirm(attempt, clipped, undecided)
    if len(clipped.held) < len(parts):
        raise LeftOutError("somebody honest holds an aggregate that does not reach this peer")
    aggregate_D = from_blob(bytearray().join(clipped.held[part] for part in parts))
    return Reduced(
        clipped,
        aggregate_D,
        combine("projections", context.state.step, attempt.number, coins),
        context.state.scales.tau,
    )


async def confirm(attempt: Attempt[T], clipped: Clipped, undecided: list[int]) -> Clipped:
    """Everyone has asked everyone for what stayed undecided, and says again what it holds (SPEC N6)."""
    slot, channel = attempt.slot(Phase.CONFIRM), attempt.context.peer.channel
    message = Confirm(bitmap([part in clipped.held for part in range(len(attempt.owners))]))
    confirms = await channel.announce(slot, message)
    attempt.expect(confirms)  # [N1]
    held = {peer: said_as(confirms[peer], Confirm).held for peer in sorted(attempt.members)}
    if undecided_aggregates(attempt, held, undecided):
        raise StalledError("too few members are left to tell whether an aggregate was handed out")
    return await fetch(attempt, clipped, Phase.CONFIRM, held)


async def fetch(attempt: Attempt[T], clipped: Clipped, phase: Phase, held: Mapping[PeerId, bytes]) -> Clipped:
    """Unless everyone holds everything: each asks all others for what it lacks."""
    parts = range(len(attempt.owners))
    if not lacking(attempt, held) and len(clipped.held) == len(parts):
        return clipped
    wanted = {part: Digest(clipped.centers[part].digest) for part in parts if part not in clipped.held}
    gathered = await attempt.context.peer.channel.gather(attempt.slot(phase), clipped.held, wanted)
    return replace(clipped, held={**clipped.held, **fitting(attempt, gathered, clipped.centers)})


async def report(attempt: Attempt[T], reduced: Reduced, parts: CommittedParts | None) -> Reported:
    """Contributors say how far they are from the aggregate; whoever says it in another form is out."""
    context, tools, parameters = attempt.context, attempt.context.peer.tools, attempt.context.peer.run.parameters
    numbers = b""
    if parts is not None:
        project = partial(tools.project, reduced.projection_key, parameters.projections, parameters.size)
        numbers = make_report(parts, reduced.aggregate_D, project, context.taus).pack()
    announced = await context.peer.channel.announce(attempt.slot(Phase.REPORT), Report(numbers, reduced.basis))
    unpacked: dict[PeerId, ReportNumbers] = {}
    for contributor in sorted(attempt.roots.keys() & announced.keys()):
        raw = said_as(announced[contributor], Report).numbers
        told = tools.unpack(raw, len(attempt.owners), parameters.projections)
        if not isinstance(told, Malformed) and adds_up(told, said_as(attempt.commits[contributor], Commit)):
            unpacked[contributor] = told
    right = {peer for peer, said in announced.items() if said_as(said, Report).basis == reduced.basis}  # [E2]
    attempt.expect({peer for peer in right if peer in unpacked or peer not in attempt.roots})  # [N1]
    return Reported(announced, {peer: unpacked[peer] for peer in attempt.roots})


def adds_up(told: ReportNumbers, commit: Commit) -> bool:
    """Whether the parts are as long as the whole was said to be: owners and auditors check the parts (SPEC V3)."""
    assert commit.length is not None
    return abs(told.length - commit.length) <= CONVICT_AT * commit.length


async def check_and_accuse(attempt: Attempt[T], reduced: Reduced, reported: Reported, trials: Trials) -> Announcements:
    """Owners check the reports about their parts, auditors their targets; coin B is opened with what they found."""
    context, step, accusations = attempt.context, attempt.context.state.step, []
    for part in attempt.my_parts if not context.peer.observing else ():
        for reporter in wrong_reporters(attempt, part, reduced, reported):
            payload = reported.announced[reporter].envelope.payload
            accusations.append(Accusation(reporter, Kind.REPORT, step, part, context.peer.tools.digest(payload)))
    if trials.audits_are_open and not context.peer.observing:
        accusations += await audit_targets(attempt)
    blame = context.peer.channel.blame()  # [F1]
    unheard, incomplete = tuple(sorted(blame.unheard)), tuple(sorted(blame.incomplete))
    basis = reported.basis(context.peer.tools)  # [E2]
    message = Accuse(tuple(accusations), attempt.coins.b, unheard, incomplete, basis)
    accuses = await context.peer.channel.announce(attempt.slot(Phase.ACCUSE), message)
    said = {peer: said_as(announced, Accuse) for peer, announced in accuses.items()}
    shown = {peer: accuse.coin for peer, accuse in said.items() if accuse.basis == basis}
    opened = attempt.right_coins("B", reduced.clipped.clips, shown)
    attempt.need_quorum(opened)  # [N4]
    trials.strike(attempt.members.difference(opened))  # [N3]
    return {peer: accuses[peer] for peer in opened}


async def audit_targets(attempt: Attempt[T]) -> list[Accusation]:
    """Recompute what one's targets did, in the step before or, if that came to nothing, in an earlier one."""
    context, found = attempt.context, []
    for due in context.roles.audits.get(context.peer.me, ()):
        if due.step not in context.state.audit_records:
            continue  # this peer has just come back: others were asked too, or will be [R7]
        kept = context.state.audit_records[due.step]
        finding = await audit(context.peer, kept, due.target)
        kind = finding.accusation(bits_count=enough_of_my_class(attempt))
        if kind is not None:
            message = context.peer.tools.digest(kept.accused(due.target, kind).envelope.payload)
            found.append(Accusation(due.target, kind, due.step, None, message))
    return found


def enough_of_my_class(attempt: Attempt[T]) -> bool:
    """Whether a quorum of the members computes the same bits as this peer: only they can judge by bits (SPEC D3)."""
    peer = attempt.context.peer
    if peer.run.parameters.deviation is None:
        return True
    alike = [said for said in attempt.commits.values() if said_as(said, Commit).hardware == peer.work.hardware_class()]
    return len(alike) >= attempt.context.state.roster.quorum


def wrong_reporters(attempt: Attempt[T], part: int, reduced: Reduced, reported: Reported) -> list[PeerId]:
    """V1: an owner holds everyone's committed part, and recomputes what they should have reported."""
    parameters, (start, stop) = attempt.context.peer.run.parameters, attempt.span(part)
    tools = attempt.context.peer.tools
    project = partial(tools.project, reduced.projection_key, parameters.projections, parameters.size)
    said = [reported.numbers[peer].part(part) for peer in attempt.roots]
    center_D, rows_PD = reduced.aggregate_D[start:stop], reduced.clipped.rows[part]
    errors_P = report_errors(rows_PD, center_D, project, start, said, attempt.context.taus[part])
    return [
        peer
        for peer, error in zip(attempt.roots, errors_P, strict=True)
        if error > ACCUSE_AT and peer != attempt.context.peer.me
    ]


def docket_of(
    attempt: Attempt[T], reduced: Reduced, reported: Reported, accuses: Announcements, trials: Trials
) -> Docket:
    """What there is to vote on: what was accused, and the parts whose numbers look wrong."""
    context, state = attempt.context, attempt.context.state
    audits = trials.hear_audits(accuses, context.roles)
    reports = {peer: reported.announced[peer] for peer in attempt.roots}  # who contributes nothing reports nothing
    charges = heard_owners(accuses, state.step, attempt.owners, reports, context.peer.tools)
    norms = [reduced.clipped.centers[part].norm for part in range(len(attempt.owners))]
    doubted = suspicious_parts(reported.numbers, norms, context.taus, context.roles.bounds)  # [V2]
    doubted |= far_parts(reported.numbers, attempt.length, context.taus, context.roles.bounds)  # [V3]
    disputed = doubted | {charge.part for charge in charges if charge.part is not None}
    owners, tools = {part: attempt.owners[part] for part in sorted(disputed)}, context.peer.tools
    clips = {peer: message_of(said, tools) for peer, said in reduced.clipped.clips.items() if peer in owners.values()}
    heard = {peer: message_of(said, tools) for peer, said in accuses.items() if peer in owners.values()}
    return Docket(
        step=state.step,
        brought=(*audits, *charges),
        owners=owners,
        doubted=frozenset(doubted),
        contributors=frozenset(attempt.roots),
        aggregates={part: aggregate_message(clips[owner], heard.get(owner)) for part, owner in owners.items()},
        reports={peer: message_of(report, tools) for peer, report in reports.items()} if owners else {},
        peers=state.roster.admitted,
    )


async def vote(
    attempt: Attempt[T], docket: Docket, disclose: Callable[[], Awaitable[list[Ballot]]] | None = None
) -> Announcements:
    """Only if somebody was accused or the numbers look wrong: everyone recomputes what is disputed.

    `disclose` gives the ballots on disputed parts, of which the closing step has none.
    """
    context, kept = attempt.context, attempt.context.state.audit_records
    audits = [charge for charge in docket.brought if charge.kind in AUDIT_KINDS]
    if not audits and not docket.owners:
        return {}
    cast: list[Ballot] = []
    targets = {(charge.step, charge.target) for charge in audits}
    back = frozenset(PeerId(rejoin.key) for rejoin in returning_after(attempt))
    context.peer.channel.enter(
        context.entry(attempt.members, admitted=back, audits=len(targets), disputed=len(docket.owners))
    )
    for step, target in sorted(targets) if not context.peer.observing else ():
        if step in kept:  # else this peer was not there, and cannot tell
            finding = await audit(context.peer, kept[step], target)
            for charge in audits:
                if (charge.step, charge.target) == (step, target):
                    cast += audit_ballots(kept[step], charge, finding, context.peer.tools)
    if docket.owners and disclose is not None and not context.peer.observing:
        cast += await disclose()
    votes = await context.peer.channel.announce(attempt.slot(Phase.VOTE), Vote(tuple(dict.fromkeys(cast))))
    return {peer: votes[peer] for peer in sorted(attempt.members & votes.keys())}


async def disputed_ballots(
    attempt: Attempt[T],
    reduced: Reduced,
    reported: Reported,
    accuses: Announcements,
    docket: Docket,
    trials: Trials,
) -> list[Ballot]:
    """Everyone gets what the owners received for the disputed parts, and judges owner and reporters by it."""
    owners = sorted(docket.owners.items())
    charges = [charge for charge in docket.brought if charge.kind == Kind.REPORT]
    mine = {part: arrived_parts(attempt, part) for part in attempt.my_parts if part in docket.owners}
    disclosed = await attempt.context.peer.channel.disclose(attempt.slot(Phase.VOTE), mine, owners, len(attempt.roots))
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
    """What a ban over this part can be recomputed from, by anyone: all of it is signed, or hashes to what is."""
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


def conclude(
    attempt: Attempt[T],
    reduced: Reduced,
    reported: Reported,
    accuses: Announcements,
    trials: Trials,
    link_disputes: LinkDisputes,
) -> Outcome[T]:
    """The model moves, the guilty leave, and the next Commits sign what happened."""
    context, peer, state = attempt.context, attempt.context.peer, attempt.context.state
    kept = AuditRecord(
        step=state.step,
        training=state.training,
        seed_randomness=state.earlier_randomness,
        owners=attempt.owners,
        bounds=context.roles.bounds,
        tau=state.scales.tau,
        aggregate_D=reduced.aggregate_D,
        projection_key=reduced.projection_key,
        attempt=attempt.number,
        commits={contributor: attempt.commits[contributor] for contributor in attempt.roots},
        reports={contributor: reported.announced[contributor] for contributor in attempt.roots},
        clips={owner: reduced.clipped.clips[owner] for owner in sorted(set(attempt.owners))},
        accuses=accuses,
    )
    moves = state.roster.moves(len(attempt.members), len(kept.commits)) and not trials.undecided(attempt.number)  # [G2]
    factor = update_factor(reduced.norm, state.scales.longest_update(attempt.length))  # [U3]
    training = state.training
    if moves:
        training = peer.work.update(training, clipped_update(reduced.aggregate_D, factor), state.scales.updates)
    coins = {sender: said_as(said, Accuse).coin for sender, said in accuses.items()}
    equivocations = peer.channel.equivocations(state.step)
    trials.convict_equivocators(equivocations)  # [Q6]
    owed, unaudited = trials.lost_audits(context.roles, state.pending_audits)
    strikes = [*trials.struck, *link_disputes.slowed]
    named = state.roster.expelled(state.step, strikes, link_disputes.new)
    expelled = tuple(peer for peer in named if peer not in trials.banned)  # also who went absent to avoid it
    record = StepRecord(
        step=state.step,
        members=state.roster.members,
        contributors=kept.contributors,
        roots=tuple(attempt.roots[contributor] for contributor in kept.contributors),
        parts=len(attempt.owners),
        seed_randomness=state.earlier_randomness,
        randomness=combine("roles", state.step, attempt.number, coins),  # [R1]
        state_before=peer.work.digest(state.training),
        state_after=peer.work.digest(training),
        updated=moves,
        updates=state.scales.updates + moves,
        tau=state.scales.tau,
        spread=pooled_norm(reported.numbers.values(), context.roles.bounds),
        length=attempt.length,
        norm=reduced.norm,
        factor=factor,
        judgements=trials.judgements,
        absent=tuple(sorted(attempt.out - trials.banned - set(expelled))),
        struck=tuple(sorted(trials.struck)),
        slowed=tuple(sorted(link_disputes.slowed)),
        link_disputes=link_disputes.new,
        expelled=expelled,
        owed=owed,
        unaudited=unaudited,
        returned=returning_after(attempt),  # [B3]
        incarnation=state.incarnation,  # [B5]
        began=state.incarnation > (0 if state.last is None else state.last.record.incarnation),
    )
    needed = {state.step - 1, *(audit.step for audit in (*state.pending_audits.owed, *owed))}
    return Outcome(
        state=State(
            step=state.step + 1,
            roster=state.roster.after(record),
            training=training,
            randomness=Digest(record.randomness),
            earlier_randomness=state.randomness,
            scales=scales_after(state.scales, record, state.roster, peer.run),
            pending_audits=PendingAudits.after(record),
            audit_records={
                **{step: old for step, old in state.audit_records.items() if step in needed},
                state.step: kept,
            },
            incarnation=state.incarnation,
            last=LastRecord.of(record, state.roster, peer.tools),
        ),
        record=record,
        certificate=attempt.certificate,
        commits=attempt.commits,
        accuses=trials.accuses,
        votes=trials.votes,
        equivocations=equivocations,
        disclosed=trials.disclosed,
        attempts=attempt.number + 1,
        audited=context.roles.audits.get(peer.me, ()) if not peer.observing else (),
        observed=peer.observing,
    )


def returning_after(attempt: Attempt[T]) -> tuple[Returned, ...]:
    return returning(attempt.commits, attempt.context.state.roster, attempt.context.state.step)


def clipped_update(aggregate_D: Tensor, factor: float) -> Tensor:
    """What the optimizer gets. One rounding of the factor, one multiplication each: the same bits everywhere (SPEC U3)."""
    return aggregate_D if factor == 1.0 else aggregate_D * torch.tensor(factor, dtype=torch.float32)
