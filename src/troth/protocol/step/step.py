"""One training step as a member runs it: Algorithm 1 of the paper, top to bottom.

Clauses in brackets are those of SPEC.md. An announcement reaches all members alike; each message in it may be a lie, and each
member may be silent.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from troth.clip.blocks import Code
from troth.clip.fast import acquitted_center
from troth.crypto import Digest, PeerId, Signature, coin_commitment
from troth.protocol.core.channel import Delivery, Disclose, Forward, Gather, Said, Scatter
from troth.protocol.core.door import ListedProbes, best_tickets, right_probe
from troth.protocol.core.parts import CommittedParts, ProvenPart, commit_parts, rows_of
from troth.protocol.core.records import encode_record, right_signers
from troth.protocol.core.roles import combine
from troth.protocol.core.roster import whole_norm
from troth.protocol.core.run import LeftOutError, StalledError
from troth.protocol.core.state import Outcome, Peer, State, right_requests
from troth.protocol.step.attempt import (
    Attempt,
    AttemptAborted,
    Clipped,
    NextModel,
    Reduced,
    Reported,
    StepContext,
    expect_next_step,
    expect_this_step,
    measured,
    own_seed,
)
from troth.protocol.step.audits import CONVICT_AT, make_report
from troth.protocol.step.conclude import LinkDisputes, conclude
from troth.protocol.step.deliveries import agreed_centers, bitmap, fitting, lacking, undecided_aggregates
from troth.protocol.step.disputes import audit_targets, disputed_ballots, docket_of, vote, wrong_reporters
from troth.protocol.step.leaves import LeafFindings, charge_of, look_at_leaves
from troth.protocol.step.trials import Trials
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import (
    MOST_CANDIDATES,
    Accusation,
    Accuse,
    Center,
    ChargeKind,
    Clip,
    Close,
    Commit,
    Confirm,
    Malformed,
    Phase,
    Probe,
    Report,
    ReportNumbers,
    Reveal,
    SignedRejoin,
    Ticket,
    said_as,
)

# P parts, D coordinates
T = TypeVar("T")


async def run_step(peer: Peer[T], state: State[T]) -> Outcome[T]:
    """Commit; clip, reveal, report, accuse and vote, repeated without members that cheat or vanish; move the model."""
    context = StepContext.at(peer, state)  # roles [R2–R7]
    expect_this_step(context)  # [R2, D1]
    gradient_D = await compute_gradient(context)  # [R2]
    parts = None if gradient_D is None else committed_parts(context, gradient_D)  # [C1, C4]
    attempt = await commit(context, parts)  # [C1, C2]
    trials, link_disputes = Trials(context.state.roster), LinkDisputes(context.state.roster, context.state.step)
    probes = ListedProbes(context.state.roster.door, peer.tools)
    while True:
        try:
            attempt = await scatter(attempt, parts)  # [C3, N1]
            attempt = await circulate(attempt, parts)  # [N5, F2]
            clipped = await clip(attempt)  # [A1, A2]
            following = expect_next_step(attempt, clipped, audits=trials.audits_are_open)  # [R2, U3]
            reduced = await reveal(attempt, clipped, link_disputes, probes)  # [A3, A4, J5]
            reported = await report(attempt, reduced, parts)  # [A5]
            leaves = await look_at_leaves(attempt, reduced, reported)  # [V4]
            accuses = await check_and_accuse(attempt, reduced, reported, leaves, trials)  # [V1, D1–D3, T1]
            link_disputes.hear(accuses, attempt.members)  # [F1, F3]
            docket = docket_of(attempt, reduced, reported, accuses, trials)  # [V2, V3, T1, T2]
            disclose = partial(disputed_ballots, attempt, reduced, reported, accuses, docket, trials)
            votes = await vote(attempt, docket, disclose)  # [T3, T6]
            trials.judge(attempt.number, accuses, votes, docket)  # [T4]
            break
        except AttemptAborted as aborted:
            link_disputes.did_not_come(aborted.missed, attempt.members)  # [F1]
            attempt = attempt.again(aborted)  # [N1, N2, N4]
    del gradient_D, parts  # as large as the model that is made now
    following = following or NextModel(attempt, reduced.aggregate_D, reduced.norm)
    # [R1, G2, U1–U3, K1, T5, B3]
    ended = conclude(attempt, reduced, reported, accuses, trials, link_disputes, following)
    return replace(ended, closing=await sign_end(attempt, ended.state)) if ended.record.alarm else ended  # [G4]


async def compute_gradient(context: StepContext[T]) -> Tensor | None:
    """Compute this peer's gradient on the public seed from the draw before last; a validator contributes none (SPEC R2)."""
    if not context.contributes:
        return None
    return await context.peer.work.gradient(context.state.training, own_seed(context), context.state.step)


def committed_parts(context: StepContext[T], gradient_D: Tensor) -> CommittedParts:
    """This peer's gradient, rounded and cut for its owners."""
    peer = context.peer
    return commit_parts(gradient_D, context.roles.bounds, peer.tools, peer.code, own_seed(context))


async def commit(context: StepContext[T], parts: CommittedParts | None) -> Attempt[T]:
    """Commit to the gradient and to both coins, before anything else of the step is known."""
    peer, slot, coins = context.peer, context.slot(Phase.COMMIT), context.peer.entropy.coins(context.state.step, 0)
    message = Commit(
        root=parts.root if parts else None,
        coin_a=coin_commitment(coins.a, slot, peer.me, "A"),
        coin_b=coin_commitment(coins.b, slot, peer.me, "B"),
        hardware=peer.work.hardware_class() if peer.run.parameters.names_hardware else None,
        rejoins=tuple(requests(context)),  # [B3]
        took=measured(context),  # [Q8]
        length=None if parts is None else whole_norm(parts.part_lengths.tolist()),  # [V3]
        signature=sign_last(context),  # [U2]
        tickets=tuple(heard_tickets(context)),  # [J4]
        record_key=next_record_key(context),  # [U6]
    )
    view = context.view(frozenset(context.state.roster.members))
    return Attempt.first(context, coins, await peer.channel.announce(slot, message, view))


def requests(context: StepContext[T]) -> list[SignedRejoin]:
    """Rejoin requests to list in Commit: those that absent peers signed for this step (SPEC B3)."""
    slot, peer = context.slot(Phase.REJOIN), context.peer
    return right_requests(slot, peer.noticed.rejoins(context.state.step), context.state.roster, peer.tools)


def heard_tickets(context: StepContext[T]) -> list[Ticket]:
    """Tickets to list in Commit, in steps that give slots away: the best that reached this peer (SPEC J4)."""
    roster, step = context.state.roster, context.state.step
    if not roster.door.is_lottery(step):
        return []
    peer = context.peer
    return best_tickets(peer.run.id, roster.door, peer.noticed.tickets(), roster.known, peer.tools)


def peers_probes(context: StepContext[T]) -> list[Probe]:
    """Commitments of candidates to list in Reveal: those that reached this peer, and are signed for this step (SPEC J5)."""
    door, slot, tools = context.state.roster.door, context.slot(Phase.COMMIT), context.peer.tools
    came = [probe for probe in context.peer.noticed.probes(context.state.step) if probe.key in door.keys]
    right = [probe for probe in came if right_probe(slot, probe, tools)]
    return sorted(right, key=lambda probe: probe.key)[:MOST_CANDIDATES]


def sign_last(context: StepContext[T]) -> Signature | None:
    """Sign the record of the step before: this step's Commits certify it (SPEC U2)."""
    last, peer = context.state.last, context.peer
    if last is None or peer.me not in last.record.members:
        return None
    return peer.signs(last)


async def sign_end(attempt: Attempt[T], ended: State[T]) -> Mapping[PeerId, Signature]:
    """Announce signatures under the last record of a run, since no Commit follows (SPEC U4, G4). With fewer than a quorum the run
    is unclosed."""
    peer, last = attempt.context.peer, ended.last
    assert last is not None
    announced = await peer.channel.announce(attempt.slot(Phase.CLOSE), Close(peer.signs(last)), attempt.view)
    said = {signer: Signature(said_as(one, Close).signature) for signer, one in announced.items()}
    return right_signers(peer.run.id, last.record.step, encode_record(last.record), last.signers, said, peer.tools)


def next_record_key(context: StepContext[T]) -> PeerId | None:
    """The key with which to sign later records, as soon as it may change (SPEC U6)."""
    peer, roster = context.peer, context.state.roster
    if peer.record_keys is None or peer.observing or not roster.may_rekey(peer.me, peer.run.parameters.rekey_every):
        return None
    return peer.record_keys.next(roster.record_key(peer.me))


async def scatter(attempt: Attempt[T], parts: CommittedParts | None) -> Attempt[T]:
    """Send each part to its owner, or to the relay that carries it there; later attempts send only parts of a new owner."""
    me, channel, relays = attempt.context.peer.me, attempt.context.peer.channel, attempt.relays
    moved = {part: owner for part, owner in enumerate(attempt.owners) if attempt.newly_owned(part)}
    to = {part: relays.get((part, me)) or owner for part, owner in moved.items()}
    sent = {part: (to[part], parts.proven_parts[part]) for part in moved} if parts else {}
    expected = {part: frozenset(attempt.roots) for part in attempt.my_parts if part in moved}
    carried = {delivery for delivery, relay in relays.items() if relay == me}
    for part in {part for part, _ in carried}:
        expected[part] = frozenset(who for about, who in carried if about == part)
    arrived = await channel.exchange(attempt.slot(Phase.CLIP), Scatter(sent, expected), attempt.view)
    found = [((part, who), arrived[part][who]) for part, who in carried if who in arrived.get(part, {})]
    return attempt.receiving(arrived).carrying(found)


def far_aggregates(attempt: Attempt[T]) -> dict[int, frozenset[PeerId]]:
    """Peers to ask for aggregates whose owner is in a link dispute with this peer: one relay, or everyone (SPEC F2)."""
    me = attempt.context.peer.me
    far = {
        part: attempt.relay(me, who)
        for part, who in enumerate(attempt.owners)
        if who in attempt.context.disputed_links.get(me, ())
    }
    return {part: attempt.members if relay is None else frozenset({relay}) for part, relay in far.items()}


async def circulate(attempt: Attempt[T], parts: CommittedParts | None) -> Attempt[T]:
    """Circulate parts that do not reach their owner: the contributor sends them to everyone, and everyone forwards them."""
    deliveries = {*attempt.circulated, *attempt.relays}
    if not deliveries or attempt.context.peer.observing:
        return attempt
    channel, slot = attempt.context.peer.channel, attempt.slot(Phase.CLIP)
    if attempt.circulated:
        attempt = attempt.carrying(await circulated_parts(attempt, parts))
    forwarded = {delivery: ((attempt.owners[delivery[0]],), proven) for delivery, proven in attempt.witnessed.items()}
    wanted = [delivery for delivery in sorted(deliveries) if delivery[0] in attempt.my_parts]
    return attempt.served(await channel.exchange(slot, Forward(forwarded, wanted, attempt.fits), attempt.view))


async def circulated_parts(attempt: Attempt[T], parts: CommittedParts | None) -> list[tuple[Delivery, ProvenPart]]:
    """Circulate missing parts: contributors send their own, and every holder those that stayed undecided (SPEC N6)."""
    me, deliveries, undecided = attempt.context.peer.me, attempt.circulated, attempt.undecided
    mine: dict[int, dict[PeerId, ProvenPart]] = {}
    for part, who in deliveries:
        if (part, who) in attempt.witnessed:
            mine.setdefault(part, {})[who] = attempt.witnessed[part, who]
        elif parts and who == me:
            mine.setdefault(part, {})[me] = parts.proven_parts[part]
    holders = {(part, holder) for (part, _), who in undecided.items() for holder in who}
    disputed_links = attempt.context.disputed_links.get(me, frozenset())  # nothing comes from these: others forward it
    wanted = sorted(showing for showing in {*deliveries, *holders} if showing[1] not in disputed_links)
    count = 1 + len(undecided)  # nobody knows how many of these will come, so with them all wait until the deadline
    channel = attempt.context.peer.channel
    shown = await channel.exchange(attempt.slot(Phase.CLIP), Disclose(mine, wanted, count), attempt.view)
    found = [((part, who), proven) for (part, _), proven_parts in shown.items() for who, proven in proven_parts.items()]
    return [(delivery, proven) for delivery, proven in found if delivery in deliveries]


async def clip(attempt: Attempt[T]) -> Clipped:
    """Aggregate the parts this peer owns, by CenteredClip; announce, and collect all aggregates."""
    context, channel = attempt.context, attempt.context.peer.channel
    arrived = {part: attempt.arrived(part) for part in attempt.my_parts}  # [C3]
    missing = sorted({peer for proven_parts in arrived.values() for peer in attempt.roots.keys() - proven_parts.keys()})
    whole = {part: proven_parts for part, proven_parts in arrived.items() if len(proven_parts) == len(attempt.roots)}
    device, code = context.peer.tools.device, context.peer.code
    rows = {part: rows_of(list(proven_parts.values()), device, code) for part, proven_parts in whole.items()}
    centers_D = {part: aggregate(rows_PD, context.taus[part], code) for part, rows_PD in rows.items()}  # [A1, A7]
    blobs = {part: Blob.of(center_D, code.centers) for part, center_D in centers_D.items()}
    await context.peer.tools.hashed(list(blobs.values()))
    message = clip_message(attempt, blobs, missing)
    said = await channel.announce(attempt.slot(Phase.CLIP), message, attempt.view)  # [A2, N2]
    clips = {peer: clip for peer, clip in said.items() if counts_as_clip(attempt, said_as(clip, Clip))}
    centers = agreed_centers(attempt, clips)  # [N1, N5]
    wanted = {part: Digest(center.digest) for part, center in centers.items()}
    gather = Gather(blobs, wanted, far_aggregates(attempt), dict(enumerate(attempt.owners)))
    gathered = await channel.exchange(attempt.slot(Phase.CLIP), gather, attempt.view)
    return Clipped(clips, centers, {}, rows).holding(fitting(attempt, gathered, centers), context.peer)


def aggregate(rows_PD: Tensor, tau: float, code: Code) -> Tensor:
    """The aggregate of a part; zeros, which say that there is none, where this peer's own judge would convict it (SPEC A7)."""
    center_D = acquitted_center(rows_PD, tau=tau, code=code)
    return torch.zeros_like(rows_PD[0]) if center_D is None else center_D


def clip_message(attempt: Attempt[T], blobs: Mapping[int, Blob], missing: list[PeerId]) -> Clip:
    """Digest and norm of every aggregate; from the second attempt on, commitments to fresh coins too (SPEC A2, N2)."""
    slot, me, tools = attempt.slot(Phase.CLIP), attempt.context.peer.me, attempt.context.peer.tools
    form = attempt.context.peer.code.centers
    norms = {part: tools.aggregate_norm(blob, form) for part, blob in sorted(blobs.items())}
    found = {part: (blobs[part], norm) for part, norm in norms.items() if norm is not None}
    told = tuple(Center(p, blob.digest, norm, tools.rounding(blob, form)) for p, (blob, norm) in found.items())
    a, b = (coin_commitment(coin, slot, me, name) for coin, name in ((attempt.coins.a, "A"), (attempt.coins.b, "B")))
    seen = bitmap([delivery in attempt.witnessed for delivery in attempt.to_witness(me)])
    if not attempt.number:
        return Clip(told, missing=tuple(missing), witnessed=seen, basis=attempt.basis)
    return Clip(told, a, b, tuple(missing), seen, attempt.basis)


def counts_as_clip(attempt: Attempt[T], said: Clip) -> bool:
    """Tell whether a Clip has the agreed basis and, from the second attempt on, fresh coins (SPEC E2, N2)."""
    return said.basis == attempt.basis and (attempt.number == 0 or None not in (said.coin_a, said.coin_b))


async def reveal(attempt: Attempt[T], clipped: Clipped, link_disputes: LinkDisputes, probes: ListedProbes) -> Reduced:
    """Open coin A, which gives the projections: only now, so nobody could fit a gradient or an aggregate to them."""
    context, channel, parts = attempt.context, attempt.context.peer.channel, range(len(attempt.owners))
    message = Reveal(attempt.coins.a, bitmap([part in clipped.held for part in parts]), tuple(peers_probes(context)))
    reveals = await channel.announce(attempt.slot(Phase.REVEAL), message, attempt.view)
    shown = {peer: said_as(said, Reveal).coin for peer, said in reveals.items()}
    coins = attempt.right_coins("A", clipped.clips, shown)
    probes.hear(attempt.slot(Phase.COMMIT), [said_as(reveals[peer], Reveal).probes for peer in coins])  # [J5]
    attempt.expect(coins)  # [N1]
    held = {peer: said_as(reveals[peer], Reveal).held for peer in coins}
    # Before disputes are noted: an owner whose machine stopped is out, and in a link dispute with nobody.
    undecided = undecided_aggregates(attempt, held, parts)
    link_disputes.did_not_come(lacking(attempt, held), attempt.members)  # [F1]
    clipped = await fetch(attempt, clipped, Phase.REVEAL, held)
    if undecided:
        clipped = await confirm(attempt, clipped, undecided)
    if clipped.aggregate_D is None:
        raise LeftOutError("an honest member holds an aggregate that does not reach this peer")
    return Reduced(
        clipped,
        clipped.aggregate_D,
        combine("projections", context.state.step, attempt.number, coins),
        context.state.scales.tau,
        probes.counted,
        probes.signed_two,
    )


async def confirm(attempt: Attempt[T], clipped: Clipped, undecided: list[int]) -> Clipped:
    """Announce again which aggregates this peer holds, after all have asked all for the undecided ones (SPEC N6)."""
    slot, channel = attempt.slot(Phase.CONFIRM), attempt.context.peer.channel
    message = Confirm(bitmap([part in clipped.held for part in range(len(attempt.owners))]))
    confirms = await channel.announce(slot, message, attempt.view)
    attempt.expect(confirms)  # [N1]
    held = {peer: said_as(confirms[peer], Confirm).held for peer in sorted(attempt.members)}
    if undecided_aggregates(attempt, held, undecided):
        raise StalledError("too few members are left to tell whether an aggregate was handed out")
    return await fetch(attempt, clipped, Phase.CONFIRM, held)


async def fetch(attempt: Attempt[T], clipped: Clipped, phase: Phase, held: Mapping[PeerId, bytes]) -> Clipped:
    """Ask all others for the aggregates this peer lacks, unless everyone holds all of them."""
    parts = range(len(attempt.owners))
    if not lacking(attempt, held) and len(clipped.held) == len(parts):
        return clipped
    wanted = {part: Digest(clipped.centers[part].digest) for part in parts if part not in clipped.held}
    channel, ask = attempt.context.peer.channel, dict.fromkeys(wanted, attempt.members)
    gathered = await channel.exchange(attempt.slot(phase), Gather(clipped.held, wanted, ask), attempt.view)
    held_now = {**clipped.held, **fitting(attempt, gathered, clipped.centers)}
    return clipped.holding(held_now, attempt.context.peer)


async def report(attempt: Attempt[T], reduced: Reduced, parts: CommittedParts | None) -> Reported:
    """Report lengths, distances from the aggregate, and projections; a member with a malformed report is out."""
    context, tools, parameters = attempt.context, attempt.context.peer.tools, attempt.context.peer.run.parameters
    numbers = b""
    if parts is not None:
        project = tools.projector(reduced.projection_key, parameters.projections, parameters.size)
        numbers = make_report(parts, reduced.aggregate_D, project, context.taus).pack()
    message = Report(numbers, reduced.basis)
    announced = await context.peer.channel.announce(attempt.slot(Phase.REPORT), message, attempt.view)
    unpacked: dict[PeerId, ReportNumbers] = {}
    for contributor in sorted(attempt.roots.keys() & announced.keys()):
        raw = said_as(announced[contributor], Report).numbers
        told = tools.unpack(raw, len(attempt.owners), parameters.projections)
        if not isinstance(told, Malformed) and adds_up(told, said_as(attempt.commits[contributor], Commit)):
            unpacked[contributor] = told
    right = {peer for peer, said in announced.items() if said_as(said, Report).basis == reduced.basis}  # [E2]
    attempt.expect({peer for peer in right if peer in unpacked or peer not in attempt.roots})  # [N1]
    numbers_of = {peer: unpacked[peer] for peer in attempt.roots}
    return Reported(announced, numbers_of, tools.table(tuple(numbers_of.values())))


def adds_up(told: ReportNumbers, commit: Commit) -> bool:
    """Tell whether the parts' lengths add up to the length in Commit; owners and auditors check each part (SPEC V3)."""
    assert commit.length is not None
    return abs(told.length - commit.length) <= CONVICT_AT * commit.length


async def check_and_accuse(
    attempt: Attempt[T], reduced: Reduced, reported: Reported, leaves: LeafFindings, trials: Trials
) -> Said:
    """Check reports about the parts this peer owns, audit its targets, and announce accusations together with coin B."""
    context, step, accusations = attempt.context, attempt.context.state.step, []
    for part in attempt.my_parts if not context.peer.observing else ():
        for reporter in wrong_reporters(attempt, part, reduced, reported):
            payload = reported.announced[reporter].envelope.payload
            accusations.append(Accusation(reporter, ChargeKind.REPORT, step, part, context.peer.tools.digest(payload)))
    for part in sorted(leaves.wrong):
        owner = attempt.owners[part]
        clip = reduced.clipped.clips[owner].envelope.payload
        accusations.append(charge_of(part, owner, step, context.peer.tools.digest(clip)))
    if trials.audits_are_open and not context.peer.observing:
        accusations += await audit_targets(attempt)
    blame = context.peer.noticed.blame()  # [F1]
    unheard, incomplete = tuple(sorted(blame.unheard | leaves.missing)), tuple(sorted(blame.incomplete))
    basis = reported.basis(context.peer.tools)  # [E2]
    message = Accuse(tuple(accusations), attempt.coins.b, unheard, incomplete, basis)
    accuses = await context.peer.channel.announce(attempt.slot(Phase.ACCUSE), message, attempt.view)
    said = {peer: said_as(announced, Accuse) for peer, announced in accuses.items()}
    shown = {peer: accuse.coin for peer, accuse in said.items() if accuse.basis == basis}
    opened = attempt.right_coins("B", reduced.clipped.clips, shown)
    attempt.need_quorum(opened)  # [N4]
    trials.strike(attempt.members.difference(opened))  # [N3]
    return {peer: accuses[peer] for peer in opened}
