"""One training step as a member runs it: Algorithm 1 of the paper, top to bottom.

Clauses in brackets are those of SPEC.md. This version is for members who lie about gradients, aggregates and reports:
announcements arrive, and everyone follows the phases. Vanishing peers come next (SPEC, "Not yet").
"""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from troth.aggregation import centered_clip
from troth.crypto import Digest, PeerId, Signature, coin_commitment
from troth.protocol.attempt import Attempt, Here, Reduced, Reported
from troth.protocol.audits import audit, examine_part, report_errors
from troth.protocol.checks import suspicious_parts
from troth.protocol.coins import combine
from troth.protocol.messages import (
    Accusation,
    Accuse,
    Announced,
    Ballot,
    Center,
    Clip,
    Commit,
    Kind,
    Malformed,
    Phase,
    Report,
    ReportNumbers,
    Reveal,
    Vote,
)
from troth.protocol.parts import CommittedParts, commit_parts, opens, rows_of
from troth.protocol.primitives import from_blob, to_blob
from troth.protocol.records import Judgement, StepRecord, encode_record, record_bytes_to_sign, right_signers
from troth.protocol.reports import ACCUSE_AT, make_report
from troth.protocol.roles import gradient_seed
from troth.protocol.state import Kept, Outcome, Peer, State
from troth.protocol.trials import AUDIT_KINDS, Charge, gradient_ballots, heard, judge, part_ballots

# P parts, D coordinates
T = TypeVar("T")
Announcements = Mapping[PeerId, Announced]


async def run_step(peer: Peer[T], state: State[T]) -> Outcome[T]:
    """Commit; clip, reveal, report, accuse and vote, again without a cheating owner if there was one; move the model."""
    here = Here.at(peer, state)  # roles [R2–R5]
    gradient_D = await compute_gradient(here)  # [R2]
    parts = commit_parts(gradient_D, here.roles.bounds, peer.tools) if gradient_D is not None else None  # [C1]
    attempt = await commit(here, parts)  # [C1, C2]
    trial = Trials()
    while True:
        attempt, reduced = await all_reduce(attempt, parts)  # [C3, A1–A3]
        reported = await report(attempt, reduced, gradient_D)  # [A4, A5]
        accuses = await check_and_accuse(attempt, reduced, reported)  # [V1, D1, D2, T1]
        votes = await vote(attempt, reduced, reported, accuses)  # [V2, T2, T3, T6]
        cheated = trial.judge(attempt, accuses, votes)  # [T4]
        if not cheated:
            break
        attempt = attempt.again(cheated)  # [N1, N2]
    randomness = next_randomness(attempt, reduced, accuses)  # [R1]
    return await conclude(attempt, reduced, reported, randomness, trial)  # [G2, U1, U2, K1, T5]


class Trials:
    """The judgements of a step, and the messages that prove them, attempt by attempt."""

    def __init__(self) -> None:
        self.judgements: tuple[Judgement, ...] = ()
        self.accuses: dict[int, Announcements] = {}
        self.votes: dict[int, Announcements] = {}

    def judge(self, attempt: Attempt[T], accuses: Announcements, votes: Announcements) -> frozenset[PeerId]:
        """Take down what was decided; return those without whom the attempt must be repeated."""
        counted = {voter: vote for voter, vote in votes.items() if voter not in attempt.out}  # [N1]
        new = judge(attempt.number, counted, attempt.here.state.roster)
        self.judgements += new
        self.accuses[attempt.number], self.votes[attempt.number] = accuses, votes
        return frozenset(j.banned for j in new if j.banned is not None and j.kind == Kind.AGGREGATE)


async def compute_gradient(here: Here[T]) -> Tensor | None:
    """Contributors compute on the seed that the randomness before last gave them; validators do not contribute."""
    if not here.contributes:
        return None
    seed = gradient_seed(here.state.earlier_randomness, here.peer.me)
    return await here.peer.work.gradient(here.state.training, seed, here.state.step)


async def commit(here: Here[T], parts: CommittedParts | None) -> Attempt[T]:
    """Gradient and both coins, before anyone knows what will be asked."""
    place, coins, me = here.place(Phase.COMMIT), here.peer.entropy.coins(here.state.step, 0), here.peer.me
    message = Commit(
        root=parts.root if parts else None,
        coin_a=coin_commitment(coins.a, place, me, "A"),
        coin_b=coin_commitment(coins.b, place, me, "B"),
    )
    return Attempt(here, 0, frozenset(), coins, await here.peer.channel.announce(place, message))


async def all_reduce(attempt: Attempt[T], parts: CommittedParts | None) -> tuple[Attempt[T], Reduced]:
    """Every owner clips its part of everyone's gradient; everyone collects the aggregates."""
    here, channel, tools = attempt.here, attempt.here.peer.channel, attempt.here.peer.tools
    moved = {part: owner for part, owner in enumerate(attempt.owners) if attempt.newly_owned(part)}
    parcels = {part: (owner, parts.parcels[part]) for part, owner in moved.items()} if parts else {}
    attempt = attempt.receiving(await channel.scatter(attempt.place(Phase.CLIP), parcels))
    rows = {part: checked_rows(attempt, part) for part in attempt.my_parts}  # [C3]
    centers_D = {part: centered_clip(rows_PD, tau=attempt.part_tau(part)) for part, rows_PD in rows.items()}  # [A1]
    blobs = {part: to_blob(center_D) for part, center_D in centers_D.items()}
    clips = await channel.announce(attempt.place(Phase.CLIP), clip_message(attempt, centers_D, blobs))  # [A2, N2]
    announced = {
        c.part: c for part, owner in enumerate(attempt.owners) for c in centers(clips[owner]) if c.part == part
    }
    assert len(announced) == len(attempt.owners), "an owner without an aggregate: SPEC, Not yet"
    wanted = {part: Digest(center.digest) for part, center in announced.items()}
    gathered = await channel.gather(attempt.place(Phase.CLIP), blobs, wanted)
    for part, digest in wanted.items():
        assert tools.digest(gathered[part]) == digest, "withheld and wrong aggregates: SPEC, Not yet"
    aggregate_D = from_blob(b"".join(gathered[part] for part in range(len(wanted))))  # [A3]
    assert len(aggregate_D) == here.peer.run.parameters.size, "an aggregate of the wrong length: SPEC, Not yet"
    return attempt, Reduced(aggregate_D, {part: center.norm for part, center in announced.items()}, clips, rows)


def checked_rows(attempt: Attempt[T], part: int) -> Tensor:
    """What hashes to the signed root is what a contributor stands for; rows in the order of keys."""
    bounds, tools, received = attempt.here.roles.bounds, attempt.here.peer.tools, attempt.received[part]
    for contributor, root in attempt.roots.items():
        assert opens(received[contributor], part, bounds, root, tools), "withheld and wrong parts: SPEC, Not yet"
    return rows_of([received[contributor] for contributor in attempt.roots])


def clip_message(attempt: Attempt[T], centers_D: Mapping[int, Tensor], blobs: Mapping[int, bytes]) -> Clip:
    """Digest and norm of every aggregate; from the second attempt on with commitments to fresh coins."""
    place, me, tools = attempt.place(Phase.CLIP), attempt.here.peer.me, attempt.here.peer.tools
    told = tuple(
        Center(part, tools.digest(blobs[part]), float(torch.linalg.vector_norm(center_D, dtype=torch.float64)))
        for part, center_D in sorted(centers_D.items())
    )
    if attempt.number == 0:
        return Clip(told)
    return Clip(
        told, coin_commitment(attempt.coins.a, place, me, "A"), coin_commitment(attempt.coins.b, place, me, "B")
    )


async def report(attempt: Attempt[T], reduced: Reduced, gradient_D: Tensor | None) -> Reported:
    """Coin A is opened only now, so nobody could fit a gradient or an aggregate to the projections; then the reports."""
    here, channel, tools = attempt.here, attempt.here.peer.channel, attempt.here.peer.tools
    held = b"\xff" * -(-len(attempt.owners) // 8)
    reveals = await channel.announce(attempt.place(Phase.REVEAL), Reveal(attempt.coins.a, held))
    shown = {peer: _as(a, Reveal).coin for peer, a in reveals.items()}
    key = combine("projections", here.state.step, attempt.number, attempt.right_coins("A", reduced.clips, shown, tools))
    numbers, parameters = b"", here.peer.run.parameters
    if gradient_D is not None and here.peer.me in attempt.roots:
        signs_KD = tools.projection(key, parameters.projections, parameters.size)
        numbers = make_report(gradient_D, reduced.aggregate_D, signs_KD, here.roles.bounds, parameters).pack()
    announced = await channel.announce(attempt.place(Phase.REPORT), Report(numbers))
    unpacked = {}
    for contributor in attempt.roots:
        raw = _as(announced[contributor], Report).numbers
        told = ReportNumbers.unpack(raw, len(attempt.owners), parameters.projections)
        assert not isinstance(told, Malformed), "a report of the wrong length: SPEC, Not yet"
        unpacked[contributor] = told
    return Reported(key, announced, unpacked)


async def check_and_accuse(attempt: Attempt[T], reduced: Reduced, reported: Reported) -> Announcements:
    """Owners check the reports about their parts, validators their targets; coin B is opened with what they found."""
    here, accusations = attempt.here, []
    for part in attempt.my_parts:
        for reporter in wrong_reporters(attempt, part, reduced, reported):
            accusations.append(Accusation(reporter, Kind.REPORT, part))
    target = here.roles.targets.get(here.peer.me)
    if attempt.number == 0 and target is not None and here.state.kept is not None:
        finding = await audit(here.peer, here.state.kept, target, ACCUSE_AT)
        accusations += [Accusation(target, finding.kind)] if finding.kind is not None else []
    message = Accuse(tuple(accusations), attempt.coins.b)
    return await here.peer.channel.announce(attempt.place(Phase.ACCUSE), message)


def wrong_reporters(attempt: Attempt[T], part: int, reduced: Reduced, reported: Reported) -> list[PeerId]:
    """V1: an owner holds everyone's committed part, and recomputes what they should have reported."""
    parameters, (start, stop) = attempt.here.peer.run.parameters, attempt.span(part)
    signs_KD = attempt.here.peer.tools.projection(reported.projection_key, parameters.projections, parameters.size)
    others = list(attempt.roots)
    said = [reported.numbers[peer].part(part) for peer in others]
    center_D = reduced.aggregate_D[start:stop]
    errors_P = report_errors(reduced.rows[part], center_D, signs_KD[:, start:stop], said, attempt.part_tau(part))
    return [
        peer for peer, error in zip(others, errors_P, strict=True) if error > ACCUSE_AT and peer != attempt.here.peer.me
    ]


async def vote(attempt: Attempt[T], reduced: Reduced, reported: Reported, accuses: Announcements) -> Announcements:
    """Only if somebody was accused or a sum does not vanish: everyone recomputes what is disputed."""
    here, state = attempt.here, attempt.here.state
    charges = heard(accuses, here.roles, attempt.owners, frozenset(attempt.roots))
    charges = tuple(c for c in charges if attempt.number == 0 or c.kind not in AUDIT_KINDS)  # audits are heard once
    parts, taus = range(len(attempt.owners)), [attempt.part_tau(part) for part in range(len(attempt.owners))]
    disputed = suspicious_parts(reported.numbers, [reduced.norms[part] for part in parts], taus)  # [V2]
    disputed |= {charge.part for charge in charges if charge.part is not None}
    if not charges and not disputed:
        return {}
    cast: list[Ballot] = []
    for charge in charges:
        if charge.kind in AUDIT_KINDS and state.kept is not None:
            cast += await gradient_ballots(here.peer, state.kept, charge)
    if disputed:
        cast += await disputed_ballots(attempt, reduced, reported, charges, frozenset(disputed))
    return await here.peer.channel.announce(attempt.place(Phase.VOTE), Vote(tuple(dict.fromkeys(cast))))


async def disputed_ballots(
    attempt: Attempt[T], reduced: Reduced, reported: Reported, charges: tuple[Charge, ...], disputed: frozenset[int]
) -> list[Ballot]:
    """Everyone gets what the owners received for the disputed parts, and judges owner and reporters by it."""
    mine = {part: attempt.received[part] for part in attempt.my_parts if part in disputed}
    laid_open = await attempt.here.peer.channel.lay_open(attempt.place(Phase.VOTE), mine, disputed)
    cast: list[Ballot] = []
    for part in sorted(disputed):
        named = frozenset(c.target for c in charges if c.kind == Kind.REPORT and c.part == part)
        finding = examine_part(attempt, part, laid_open.get(part, {}), reduced, reported)
        cast += part_ballots(attempt.owners[part], part, named, finding)
    return cast


def next_randomness(attempt: Attempt[T], reduced: Reduced, accuses: Announcements) -> Digest:
    """The next step's roles: nobody knew them while anything of this step could still be changed."""
    shown = {peer: _as(a, Accuse).coin for peer, a in accuses.items()}
    right = attempt.right_coins("B", reduced.clips, shown, attempt.here.peer.tools)
    return combine("roles", attempt.here.state.step, attempt.number, right)


async def conclude(
    attempt: Attempt[T], reduced: Reduced, reported: Reported, randomness: Digest, trial: Trials
) -> Outcome[T]:
    """The model moves, the guilty leave, and more than half sign what happened."""
    here, peer, state = attempt.here, attempt.here.peer, attempt.here.state
    kept = Kept(
        step=state.step,
        training=state.training,
        seed_randomness=state.earlier_randomness,
        owners=attempt.owners,
        bounds=here.roles.bounds,
        aggregate_D=reduced.aggregate_D,
        projection_key=reported.projection_key,
        commits={contributor: attempt.commits[contributor] for contributor in attempt.roots},
        reports={contributor: reported.announced[contributor] for contributor in attempt.roots},
    )
    enough = state.roster.enough(peer.run, len(kept.commits))
    training = peer.work.update(state.training, kept.aggregate_D, state.step) if enough else state.training
    record = StepRecord(
        step=state.step,
        members=state.roster.members,
        contributors=kept.contributors,
        roots=tuple(attempt.roots[contributor] for contributor in kept.contributors),
        parts=len(attempt.owners),
        seed_randomness=state.earlier_randomness,
        randomness=randomness,
        state_before=peer.work.digest(state.training),
        state_after=peer.work.digest(training),
        updated=enough,
        judgements=trial.judgements,
    )
    return Outcome(
        state=State(state.step + 1, state.roster.without(record.banned), training, randomness, state.randomness, kept),
        record=record,
        record_signatures=await sign_record(here, record),
        commits=attempt.commits,
        accuses=trial.accuses,
        votes=trial.votes,
        audited=here.roles.targets.get(peer.me),
    )


async def sign_record(here: Here[T], record: StepRecord) -> dict[PeerId, Signature]:
    """Collected signatures, not an announcement; fewer than a majority would mean that honest peers disagree."""
    peer, members, raw = here.peer, here.state.roster.members, encode_record(record)
    signature = peer.identity.sign(record_bytes_to_sign(peer.run.id, record.step, peer.me, peer.tools.digest(raw)))
    collected = await peer.channel.sign_record(here.place(Phase.RECORD), signature)
    right = right_signers(peer.run.id, record.step, raw, members, collected, peer.tools)
    assert len(right) >= here.state.roster.majority, "no majority signed this record: honest peers disagree"
    return right


def centers(clip: Announced) -> tuple[Center, ...]:
    return _as(clip, Clip).centers


M = TypeVar("M", Clip, Reveal, Report, Accuse)


def _as(announced: Announced, kind: type[M]) -> M:
    """The channel decodes by phase, so another type would be our own bug."""
    assert isinstance(announced.message, kind)
    return announced.message
