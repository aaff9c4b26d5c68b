"""One training step as a member runs it: Algorithm 1 of the paper, top to bottom.

Clauses in brackets are those of SPEC.md. This version is for peers who lie about gradients: announcements arrive, and
everyone follows the phases. Cheating owners and vanishing peers come next (SPEC, "Not yet").
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from troth.aggregation import centered_clip
from troth.crypto import Context, Digest, PeerId, Signature, coin_commitment
from troth.protocol.audits import audit
from troth.protocol.coins import Coins, combine, right_openings
from troth.protocol.messages import Accusation, Accuse, Announced, Clip, Commit, Kind, Phase, Report, Reveal
from troth.protocol.parts import CommittedParts, Parcel, commit_parts, opens
from troth.protocol.primitives import from_blob, to_blob
from troth.protocol.records import Judgement, StepRecord, encode_record, record_bytes_to_sign, right_signers
from troth.protocol.reports import ACCUSE_AT, make_report
from troth.protocol.roles import Roles, draw_roles, gradient_seed
from troth.protocol.state import Kept, Outcome, Peer, State
from troth.protocol.trials import ballots, docket, judge

# P parts, D coordinates
T = TypeVar("T")
Announcements = Mapping[PeerId, Announced]


async def run_step(peer: Peer[T], state: State[T]) -> Outcome[T]:
    """Commit, clip, reveal, report, accuse; vote if there is something to vote on; then move the model."""
    here = Here.at(peer, state)  # roles [R2–R5]
    gradient_D = await compute_gradient(here)  # [R2]
    parts = commit_parts(gradient_D, here.roles.bounds, peer.tools) if gradient_D is not None else None  # [C1]
    commits = await announce_commitments(here, parts)  # [C1, C2]
    aggregate_D = await all_reduce(here, parts, commits)  # [C3, A1–A3]
    projection_key = await open_projections(here, commits)  # [A4]
    reports = await announce_reports(here, gradient_D, aggregate_D, projection_key)  # [A5]
    accuses = await audit_and_accuse(here)  # [D1, D2, T1]
    randomness = next_randomness(here, commits, accuses)  # [R1]
    votes, judgements = await hold_trials(here, accuses)  # [T2–T4]
    kept = here.keep(commits, reports, aggregate_D, projection_key)  # [K1]
    return await conclude(here, kept, randomness, accuses, votes, judgements)  # [G2, U1, U2, T5]


@dataclass(frozen=True)
class Here(Generic[T]):
    """This peer in this step: where its messages belong, what its roles are, what its coins show."""

    peer: Peer[T]
    state: State[T]
    roles: Roles
    coins: Coins

    @classmethod
    def at(cls, peer: Peer[T], state: State[T]) -> "Here[T]":
        contributors = state.kept.contributors if state.kept else ()
        roles = draw_roles(peer.run, state.roster, state.randomness, contributors)
        return cls(peer, state, roles, peer.entropy.coins(state.step))

    def place(self, phase: Phase) -> Context:
        return Context(self.peer.run.id, self.state.step, phase)

    @property
    def my_part(self) -> int | None:
        return self.roles.part_of(self.peer.me)

    def right_coins(
        self, which: str, committed: Mapping[PeerId, bytes], shown: Mapping[PeerId, bytes]
    ) -> dict[PeerId, bytes]:
        return right_openings(which, committed, shown, self.place(Phase.COMMIT), self.peer.tools)

    def keep(
        self, commits: Announcements, reports: Announcements, aggregate_D: Tensor, projection_key: Digest
    ) -> Kept[T]:
        contributors = contributed_roots(self, commits)
        return Kept(
            step=self.state.step,
            training=self.state.training,
            seed_randomness=self.state.earlier_randomness,
            bounds=self.roles.bounds,
            aggregate_D=aggregate_D,
            projection_key=projection_key,
            commits={peer: commits[peer] for peer in contributors},
            reports={peer: reports[peer] for peer in contributors},
        )


async def compute_gradient(here: Here[T]) -> Tensor | None:
    """Contributors compute on the seed that the randomness before last gave them; validators do not contribute."""
    if here.my_part is None:
        return None
    seed = gradient_seed(here.state.earlier_randomness, here.peer.me)
    return await here.peer.work.gradient(here.state.training, seed, here.state.step)


async def announce_commitments(here: Here[T], parts: CommittedParts | None) -> Announcements:
    """Gradient and both coins, before anyone knows what will be asked."""
    place = here.place(Phase.COMMIT)
    return await here.peer.channel.announce(
        place,
        Commit(
            root=parts.root if parts else None,
            coin_a=coin_commitment(here.coins.a, place, here.peer.me, "A"),
            coin_b=coin_commitment(here.coins.b, place, here.peer.me, "B"),
        ),
    )


async def all_reduce(here: Here[T], parts: CommittedParts | None, commits: Announcements) -> Tensor:
    """Every owner clips its part of everyone's gradient; everyone collects the parts."""
    channel, tools, owners = here.peer.channel, here.peer.tools, here.roles.owners
    parcels = dict(zip(owners, parts.parcels, strict=True)) if parts else {}
    received = await channel.scatter(here.place(Phase.COMMIT), parcels)
    center, norm = None, 0.0
    if here.my_part is not None:
        rows_PD = checked_rows(here, here.my_part, received, contributed_roots(here, commits))  # [C3]
        center_D = centered_clip(rows_PD, tau=here.peer.run.parameters.part_tau(rows_PD.shape[1]))  # [A1]
        center, norm = to_blob(center_D), float(torch.linalg.vector_norm(center_D, dtype=torch.float64))
    digest = tools.digest(center) if center is not None else None
    clips = await channel.announce(here.place(Phase.CLIP), Clip(digest, norm))  # [A2]
    wanted = {part: announced_digest(clips[owner]) for part, owner in enumerate(owners)}
    blobs = await channel.gather(here.place(Phase.CLIP), center, wanted)
    for part, wanted_digest in wanted.items():
        assert tools.digest(blobs[part]) == wanted_digest, "withheld and wrong aggregates: SPEC, Not yet"
    return from_blob(b"".join(blobs[part] for part in range(len(owners))))  # [A3]


def checked_rows(here: Here[T], part: int, received: Mapping[PeerId, Parcel], roots: Mapping[PeerId, Digest]) -> Tensor:
    """What hashes to the signed root is what a contributor stands for; rows in the order of keys."""
    bounds, tools = here.roles.bounds, here.peer.tools
    for contributor, root in roots.items():
        assert opens(received[contributor], part, bounds, root, tools), "withheld and wrong parts: SPEC, Not yet"
    return torch.stack([from_blob(received[contributor].blob) for contributor in sorted(roots)])


async def open_projections(here: Here[T], commits: Announcements) -> Digest:
    """Coin A is opened only now: nobody could fit a gradient or an aggregate to the projections."""
    held = bytes(b"\xff" * -(-len(here.roles.owners) // 8))
    reveals = await here.peer.channel.announce(here.place(Phase.REVEAL), Reveal(here.coins.a, held))
    committed = {peer: _as(a, Commit).coin_a for peer, a in commits.items()}
    shown = {peer: _as(a, Reveal).coin for peer, a in reveals.items()}
    return combine("projections", here.state.step, here.right_coins("A", committed, shown))


async def announce_reports(
    here: Here[T], gradient_D: Tensor | None, aggregate_D: Tensor, projection_key: Digest
) -> Announcements:
    """Every contributor's distances from the aggregate, and their projections."""
    numbers, parameters = b"", here.peer.run.parameters
    if gradient_D is not None:
        signs_KD = here.peer.tools.projection(projection_key, parameters.projections, parameters.size)
        numbers = make_report(gradient_D, aggregate_D, signs_KD, here.roles.bounds, parameters).pack()
    return await here.peer.channel.announce(here.place(Phase.REPORT), Report(numbers))


async def audit_and_accuse(here: Here[T]) -> Announcements:
    """Validators recompute what their targets did in the last step; coin B is opened with what they found."""
    target = here.roles.targets.get(here.peer.me)
    accusations: tuple[Accusation, ...] = ()
    if target is not None and here.state.kept is not None:
        finding = await audit(here.peer, here.state.kept, target, ACCUSE_AT)
        accusations = (Accusation(target, Kind.GRADIENT),) if finding.guilty else ()
    return await here.peer.channel.announce(here.place(Phase.ACCUSE), Accuse(accusations, here.coins.b))


def next_randomness(here: Here[T], commits: Announcements, accuses: Announcements) -> Digest:
    """The next step's roles: nobody knew them while anything of this step could still be changed."""
    committed = {peer: _as(a, Commit).coin_b for peer, a in commits.items()}
    shown = {peer: _as(a, Accuse).coin for peer, a in accuses.items()}
    return combine("roles", here.state.step, here.right_coins("B", committed, shown))


async def hold_trials(here: Here[T], accuses: Announcements) -> tuple[Announcements, tuple[Judgement, ...]]:
    """Only after accusations: everyone recomputes what is disputed, more than half decide."""
    charges = docket(accuses, here.roles)
    if not charges or here.state.kept is None:
        return {}, ()
    vote = await ballots(here.peer, here.state.kept, charges)
    votes = await here.peer.channel.announce(here.place(Phase.VOTE), vote)
    return votes, judge(charges, votes, here.state.roster)


async def conclude(
    here: Here[T],
    kept: Kept[T],
    randomness: Digest,
    accuses: Announcements,
    votes: Announcements,
    judgements: tuple[Judgement, ...],
) -> Outcome[T]:
    """The model moves, the guilty leave, and more than half sign what happened."""
    peer, state = here.peer, here.state
    enough = state.roster.enough(peer.run, len(kept.commits))  # [G2]
    training = peer.work.update(state.training, kept.aggregate_D, state.step) if enough else state.training  # [U1]
    record = StepRecord(
        step=state.step,
        members=state.roster.members,
        contributors=kept.contributors,
        seed_randomness=state.earlier_randomness,
        randomness=randomness,
        state_before=peer.work.digest(state.training),
        state_after=peer.work.digest(training),
        updated=enough,
        judgements=judgements,
    )
    roster = state.roster.without(record.banned)  # [T5]
    return Outcome(
        state=State(state.step + 1, roster, training, randomness, state.randomness, kept),
        record=record,
        record_signatures=await sign_record(here, record),  # [U2]
        accuses=accuses,
        votes=votes,
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


def contributed_roots(here: Here[T], commits: Announcements) -> dict[PeerId, Digest]:
    """The roots of those whose role it is to contribute, in the order of keys."""
    roots = {peer: _as(commits[peer], Commit).root for peer in sorted(here.roles.owners) if peer in commits}
    return {peer: Digest(root) for peer, root in roots.items() if root is not None}


def announced_digest(clip: Announced) -> Digest:
    digest = _as(clip, Clip).digest
    assert digest is not None, "an owner without an aggregate: SPEC, Not yet"
    return Digest(digest)


M = TypeVar("M", Commit, Clip, Reveal, Report, Accuse)


def _as(announced: Announced, kind: type[M]) -> M:
    """The channel decodes by phase, so another type would be our own bug."""
    assert isinstance(announced.message, kind)
    return announced.message
