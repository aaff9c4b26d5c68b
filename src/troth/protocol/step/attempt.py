"""One attempt at a step: its members, the owners of parts, and the parts that have arrived so far (SPEC N1, N2)."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
from torch import Tensor

from troth.crypto import Digest, PeerId, Seed, Signature, Slot, derive, valid_peer
from troth.protocol.core.channel import AttemptView, Delivery, Said
from troth.protocol.core.parts import ProvenPart, opens
from troth.protocol.core.records import (
    Rekeyed,
    Returned,
    aggregates_basis,
    record_bytes_to_sign,
    reports_basis,
    roots_basis,
)
from troth.protocol.core.roles import Coins, Roles, draw_roles, gradient_seed, right_openings
from troth.protocol.core.roster import lower_median, part_taus, update_factor, whole_norm
from troth.protocol.core.run import LeftOutError, StalledError, UncertifiedError
from troth.protocol.core.state import LastRecord, Peer, State, returning, right_requests
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import (
    MOST_MILLISECONDS,
    Announced,
    Center,
    Clip,
    Commit,
    Measured,
    Phase,
    ReportNumbers,
    said_as,
)
from troth.protocol.wire.primitives import Primitives, ReportTable

# One peer in one step: everything that its attempts have in common.


T = TypeVar("T")


@dataclass(frozen=True)
class StepContext(Generic[T]):
    """A peer, its state at the start of the step, and the roles drawn from that state."""

    peer: Peer[T]
    state: State[T]
    roles: Roles

    @classmethod
    def at(cls, peer: Peer[T], state: State[T]) -> "StepContext[T]":
        return cls(peer, state, draw_roles(peer.run, state.roster, state.randomness, state.pending_audits))

    def slot(self, phase: Phase, attempt: int = 0) -> Slot:
        return Slot(self.peer.run.id, self.state.step, phase, attempt, self.state.incarnation)

    @property
    def began(self) -> bool:
        """Whether this is the first step of its incarnation (SPEC B5)."""
        last = self.state.last
        return self.state.incarnation > (0 if last is None else last.record.incarnation)

    @property
    def contributes(self) -> bool:
        return self.peer.me in self.roles.owners and not self.peer.observing

    @cached_property
    def disputed_links(self) -> dict[PeerId, frozenset[PeerId]]:
        """Members in link disputes, by member (SPEC F2)."""
        return self.state.roster.disputed_links()

    def view(
        self,
        members: frozenset[PeerId],
        *,
        admitted: frozenset[PeerId] = frozenset(),
        audits: int = 1,
        disputed: int = 1,
    ) -> AttemptView:
        """Describe an attempt among these members to the channel."""
        roster, links, leaves = self.state.roster, self.disputed_links, self.peer.code.rounds_centers
        drawn = roster.liars, roster.quorum, self.state.step, leaves
        return AttemptView(members, links, admitted, audits, disputed, *drawn)

    @cached_property
    def taus(self) -> tuple[float, ...]:
        """Clipping radius of every part (SPEC A1)."""
        return part_taus(self.state.scales.tau, self.roles.bounds)


# D coordinates


class AttemptAborted(Exception):  # noqa: N818 (a turn of events, not an error)
    """Members are out of the step, or parts did not reach their owner; the attempt is repeated (SPEC N1, N5)."""

    def __init__(
        self,
        peers: Collection[PeerId],
        disputed: Collection[Delivery] = (),
        undecided: Mapping[Delivery, frozenset[PeerId]] | None = None,
        missed: Mapping[PeerId, Collection[PeerId]] | None = None,
    ) -> None:
        super().__init__(f"{len(peers)} are out, {len(disputed)} parts did not come")
        self.peers = frozenset(peers)
        self.disputed = frozenset(disputed)
        self.undecided = undecided or {}  # disputed parts, circulated but neither believed nor denied → their holders
        self.missed = missed or {}  # receiver → members whose parts did not come, by its own word (SPEC F1)


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """One pass from Clip to Vote, without the members that are out. Gradients and part bounds stay; coins are fresh."""

    context: StepContext[T]
    number: int
    out: frozenset[PeerId]
    coins: Coins
    commits: Said
    received: Mapping[int, Mapping[PeerId, ProvenPart]] = field(default_factory=dict)  # parts that this peer owns
    just_out: frozenset[PeerId] = frozenset()  # since the last attempt
    disputed: frozenset[Delivery] = frozenset()  # parts that owners lacked in the last attempt, by their own word
    undecided: Mapping[Delivery, frozenset[PeerId]] = field(default_factory=dict)  # of these, circulated → holders
    witnessed: Mapping[Delivery, ProvenPart] = field(default_factory=dict)  # others' parts that this peer is to forward

    @classmethod
    def first(cls, context: StepContext[T], coins: Coins, commits: Said) -> "Attempt[T]":
        """The first attempt, without members that did not commit as their role asks (SPEC N1, U2, B3)."""
        members, owners = frozenset(context.state.roster.members), context.roles.owners
        heard = {peer: commits[peer] for peer in sorted(members & commits.keys())}
        if (last := context.state.last) is not None:
            context.peer.tools.verify_soon(last.digest, lambda: signatures_of_last(context, heard))
        counted = {
            peer: said
            for peer, said in heard.items()
            if (_root(said) is not None) == (peer in owners)
            and signs_last(context, said)
            and lists_requests(context, said)
            and may_change_key(context, said)
        }
        attempt = cls(context, 0, members - counted.keys(), coins, counted)
        if attempt.certifies_last and context.state.last is not None:
            # Even if this peer is out of the step.
            context.peer.certified(context.state.last.record, attempt.certificate)
        attempt._checked().need_certificate()
        return attempt

    def again(self, why: AttemptAborted) -> "Attempt[T]":
        """The next attempt, with fresh coins, so that nobody knows the next draw (SPEC N2)."""
        return replace(
            self,
            number=self.number + 1,
            out=self.out | why.peers,
            just_out=why.peers,
            coins=self.context.peer.entropy.coins(self.context.state.step, self.number + 1),
            disputed=why.disputed,
            undecided=why.undecided,
            witnessed={delivery: self.witnessed[delivery] for delivery in why.undecided if delivery in self.witnessed},
        )._checked()

    def _checked(self) -> "Attempt[T]":
        """Stop if this peer was not heard, or no quorum is left: else both sides of a network cut could go on (SPEC N4)."""
        if self.context.peer.me in self.out and not self.context.peer.observing:
            raise LeftOutError(f"step {self.context.state.step} goes on without this peer")
        self.need_quorum(self.members)
        return self

    @cached_property
    def members(self) -> frozenset[PeerId]:
        """Members that take part in this attempt, as contributors or not."""
        return frozenset(self.context.state.roster.members) - self.out

    @cached_property
    def view(self) -> AttemptView:
        most = max(map(len, self.context.roles.audits.values()), default=0)
        return self.context.view(self.members, admitted=self.admitted, audits=most)

    @cached_property
    def returned(self) -> tuple[Returned, ...]:
        """Peers that are members again after this step (SPEC B3)."""
        return returning(self.commits, self.context.state.roster, self.context.state.step)

    def rekeyed(self, leaving: Collection[PeerId]) -> tuple[Rekeyed, ...]:
        """Members that were heard to the end, and sign later records with another key; also those that are expelled, which
        whoever replays the step may not know (SPEC U6)."""
        said = {peer: said_as(self.commits[peer], Commit).record_key for peer in sorted(self.members - set(leaving))}
        return tuple(Rekeyed(peer, key) for peer, key in said.items() if key is not None)

    @property
    def admitted(self) -> frozenset[PeerId]:
        """Keys of the returned peers."""
        return frozenset(PeerId(returned.key) for returned in self.returned)

    def expect(self, heard: Collection[PeerId]) -> None:
        """Abort the attempt if a member is not among these: it is out (SPEC N1)."""
        silent = self.members.difference(heard)
        if silent:
            raise AttemptAborted(silent)

    def need_quorum(self, heard: Collection[PeerId]) -> None:
        members, quorum = self.context.state.roster.members, self.context.state.roster.quorum
        if len(heard) < quorum:
            raise StalledError(
                f"step {self.context.state.step}: {len(heard)} of {len(members)} members are left, {quorum} are needed"
            )

    @cached_property
    def certificate(self) -> dict[PeerId, Signature]:
        """Signatures under the last record that came with the Commits (SPEC U2)."""
        said = {peer: said_as(announced, Commit).signature for peer, announced in self.commits.items()}
        return {peer: Signature(signature) for peer, signature in said.items() if signature is not None}

    @property
    def certifies_last(self) -> bool:
        last = self.context.state.last
        return last is None or len(self.certificate) >= last.quorum

    def need_certificate(self) -> None:
        """Stop if no quorum signed the last record. All hold the same Commits, so all stop or none does: a liar cannot hand
        signatures to some only (SPEC U2)."""
        last = self.context.state.last
        if last is not None and not self.certifies_last:
            raise UncertifiedError(
                f"step {last.record.step}: {len(self.certificate)} signed its record, {last.quorum} are needed"
            )

    @cached_property
    def length(self) -> float:
        """`M`, the lower median of the gradients' announced lengths over the contributors of this attempt (SPEC V3)."""
        lengths = [said_as(self.commits[peer], Commit).length for peer in self.roots]
        return lower_median([length for length in lengths if length is not None])

    @cached_property
    def roots(self) -> dict[PeerId, Digest]:
        """Merkle roots of the contributors of this attempt, in the order of keys."""
        found = {peer: _root(self.commits[peer]) for peer in sorted(set(self.context.roles.owners) - self.out)}
        return {peer: root for peer, root in found.items() if root is not None}

    @cached_property
    def basis(self) -> Digest:
        """Basis of Clip: the digest of the roots and the radius, signed with the aggregates (SPEC E2)."""
        return roots_basis(self.roots, self.context.state.scales.tau)

    @cached_property
    def owners(self) -> tuple[PeerId, ...]:
        return tuple(self.context.roles.owner_of(part, self.out) for part in range(len(self.context.roles.owners)))

    @cached_property
    def my_parts(self) -> list[int]:
        return [part for part, owner in enumerate(self.owners) if owner == self.context.peer.me]

    def newly_owned(self, part: int) -> bool:
        """Whether the part has to be sent: every part in the first attempt, later those whose owner went out."""
        return self.number == 0 or self.context.roles.owner_of(part, self.out - self.just_out) != self.owners[part]

    def relay(self, one: PeerId, other: PeerId) -> PeerId | None:
        """Member that carries blobs between two members in a link dispute (SPEC F2).

        It is drawn anew in every step among members in dispute with neither, so a blob missed on this way puts another pair in
        dispute: the same pair cannot cost an attempt twice."""
        disputed_links = self.context.disputed_links
        able = sorted(
            self.members - {one, other} - disputed_links.get(one, frozenset()) - disputed_links.get(other, frozenset())
        )
        draw = derive(self.context.state.randomness, "relay", min(one, other), max(one, other))
        return able[int.from_bytes(draw) % len(able)] if able else None

    @cached_property
    def relays(self) -> dict[Delivery, PeerId | None]:
        """Parts whose owner and contributor are in a link dispute, with the relay that carries them (SPEC F2)."""
        return {
            (part, contributor): self.relay(owner, contributor)
            for part, owner in enumerate(self.owners)
            if owner in self.context.disputed_links and self.newly_owned(part)
            for contributor in sorted(self.context.disputed_links[owner] & self.roots.keys())
        }

    @cached_property
    def circulated(self) -> list[Delivery]:
        """Parts that go to everyone, in a fixed order: those in dispute, and those without a possible relay (SPEC N5)."""
        stranded = {delivery for delivery, relay in self.relays.items() if relay is None}
        disputed = {(part, who) for part, who in self.disputed if who in self.roots and not self.newly_owned(part)}
        return sorted(stranded | disputed)

    def to_witness(self, peer: PeerId) -> list[Delivery]:
        """Parts that this peer is to forward or relay: it says in Clip which of them came."""
        return sorted({*self.circulated, *(delivery for delivery, relay in self.relays.items() if relay == peer)})

    def receiving(self, proven_parts: Mapping[int, Mapping[PeerId, ProvenPart]]) -> "Attempt[T]":
        """This attempt with parts that were asked for: a liar that sends a part again must not replace one that arrived."""
        asked = {part: proven_parts[part] for part in self.my_parts if part in proven_parts and self.newly_owned(part)}
        return self._holding(received={**self.received, **asked})

    def carrying(self, proven_parts: Iterable[tuple[Delivery, ProvenPart]]) -> "Attempt[T]":
        """This attempt with others' parts to forward: of several, one that fits its root."""
        fitting = {delivery: proven for delivery, proven in proven_parts if self.fits(delivery, proven)}
        return self._holding(witnessed={**self.witnessed, **fitting}) if fitting else self

    def served(self, proven_parts: Mapping[Delivery, ProvenPart]) -> "Attempt[T]":
        """This attempt with parts that others forwarded to this peer as their owner (SPEC N5)."""
        received = {part: dict(senders) for part, senders in self.received.items()}
        for (part, contributor), proven in proven_parts.items():
            received.setdefault(part, {})[contributor] = proven
        return self._holding(received=received)

    def _holding(self, **parts: Any) -> "Attempt[T]":
        """This attempt with other parts in hand. None of its properties depends on them, so those known stay known."""
        changed = replace(self, **parts)
        changed.__dict__.update({name: known for name, known in vars(self).items() if name not in vars(changed)})
        return changed

    def arrived(self, part: int) -> dict[PeerId, ProvenPart]:
        """Received parts that hash to the signed root, by contributor, in the order of keys (SPEC C3)."""
        received = self.received.get(part, {})
        return {who: received[who] for who in self.roots if who in received and self.fits((part, who), received[who])}

    def fits(self, delivery: Delivery, proven: ProvenPart) -> bool:
        """Whether the contributor committed to this part."""
        part, contributor = delivery
        peer = self.context.peer
        return opens(proven, part, self.context.roles.bounds, self.roots[contributor], peer.tools, peer.code)

    def slot(self, phase: Phase) -> Slot:
        return self.context.slot(phase, self.number)

    def span(self, part: int) -> tuple[int, int]:
        return self.context.roles.bounds[part], self.context.roles.bounds[part + 1]

    def right_coins(self, which: str, clips: Said, shown: Mapping[PeerId, bytes]) -> dict[PeerId, bytes]:
        """Opened coins that fit their commitments, made in Commit for the first attempt, in Clip for later ones (SPEC N2)."""
        source, phase = (self.commits, Phase.COMMIT) if self.number == 0 else (clips, Phase.CLIP)
        committed: dict[PeerId, bytes] = {}
        for peer in sorted(self.members & source.keys()):
            message = source[peer].message
            assert isinstance(message, Commit | Clip)
            coin = message.coin_a if which == "A" else message.coin_b
            if coin is not None:
                committed[peer] = coin
        return right_openings(which, committed, shown, self.slot(phase), self.context.peer.tools)


@dataclass(frozen=True)
class Clipped:
    """Announced aggregates, and the blobs that arrived as announced."""

    clips: Said
    centers: Mapping[int, Center]  # by part
    held: Mapping[int, Blob]  # by part
    rows: Mapping[int, Tensor]  # contributors' numbers, for the parts that this peer owns
    aggregate_D: Tensor | None = None  # all parts joined; None while one is missing

    def holding(self, held: Mapping[int, Blob], peer: Peer[T]) -> "Clipped":
        """These, with the blobs that are here; joined as soon as all are."""
        if not held.keys() >= self.centers.keys():
            return replace(self, held=held, aggregate_D=None)
        blobs = [held[part] for part in sorted(self.centers)]
        return replace(self, held=held, aggregate_D=peer.tools.joined(blobs, peer.code.centers))

    @property
    def norm(self) -> float:
        """Length of the aggregate, from the announced norms of its parts, which fit the blobs exactly (SPEC A3)."""
        return whole_norm(center.norm for center in self.centers.values())


@dataclass(frozen=True)
class Reduced:
    """The aggregate as all members hold it, fixed before the projection key was known."""

    clipped: Clipped
    aggregate_D: Tensor
    projection_key: Digest
    tau: float
    probed: Said = field(default_factory=dict)  # commitments of candidates (SPEC J5)
    signed_two: frozenset[PeerId] = frozenset()  # candidates that signed two commitments

    @cached_property
    def basis(self) -> Digest:
        """Basis of Report: the digest of the aggregates, the projection key and the radius (SPEC E2)."""
        return aggregates_basis(self.digests, self.projection_key, self.tau)

    @property
    def digests(self) -> tuple[Digest, ...]:
        """Digests of the aggregates of all parts."""
        return tuple(Digest(self.clipped.centers[part].digest) for part in sorted(self.clipped.centers))

    @property
    def norm(self) -> float:
        """Length of the aggregate."""
        return self.clipped.norm


@dataclass(frozen=True)
class Reported:
    """All reports under this attempt's projections."""

    announced: Said
    numbers: Mapping[PeerId, ReportNumbers]  # in the order of keys
    table: ReportTable  # the same, side by side

    def basis(self, tools: Primitives) -> Digest:
        """Basis of Accuse: the digest of all reports (SPEC E2)."""
        return reports_basis({peer: tools.digest(self.announced[peer].envelope.payload) for peer in self.numbers})


def signs_last(context: StepContext[T], commit: Announced) -> bool:
    """Tell whether a Commit carries its sender's signature under the last record, or none if it was no member then (SPEC U2)."""
    last, signature = context.state.last, said_as(commit, Commit).signature
    if last is None or commit.sender not in last.record.members:
        return signature is None
    return signature is not None and context.peer.tools.verify(*_signed_last(context, last, commit.sender, signature))


def signatures_of_last(context: StepContext[T], commits: Said) -> list[tuple[PeerId, bytes, bytes]]:
    """Signatures under the last record that are to be verified, with all that it takes."""
    last, told = context.state.last, {peer: said_as(said, Commit).signature for peer, said in commits.items()}
    assert last is not None
    members = set(last.record.members)
    return [_signed_last(context, last, peer, s) for peer, s in told.items() if s is not None and peer in members]


def _signed_last(
    context: StepContext[T], last: LastRecord, sender: PeerId, signature: bytes
) -> tuple[PeerId, bytes, bytes]:
    signed = record_bytes_to_sign(context.peer.run.id, last.record.step, sender, last.digest)
    return last.signers[sender], signed, signature


def lists_requests(context: StepContext[T], commit: Announced) -> bool:
    """Tell whether a Commit lists only rejoin requests signed for this step, one for each absent peer (SPEC B3)."""
    rejoins = said_as(commit, Commit).rejoins
    if not rejoins:
        return True
    right = right_requests(context.slot(Phase.REJOIN), rejoins, context.state.roster, context.peer.tools)
    return len(right) == len(rejoins)


def may_change_key(context: StepContext[T], commit: Announced) -> bool:
    """Tell whether a Commit names no record key, or one that its sender may change to now (SPEC U6)."""
    key = said_as(commit, Commit).record_key
    every = context.peer.run.parameters.rekey_every
    return key is None or (valid_peer(key) and context.state.roster.may_rekey(commit.sender, every))


def _root(commit: Announced) -> Digest | None:
    assert isinstance(commit.message, Commit)
    return None if commit.message.root is None else Digest(commit.message.root)


# Looking ahead: gradients that will probably be wanted, named to the training side as soon as their inputs are known.
#
# Audits and, for most members, a gradient follow from the roles at the start of a step. A contributor's next seed comes from
# a draw that is known then too (SPEC R2), and the next model follows from the aggregates and the Commits (SPEC U3): so the
# next gradient can be computed beside Reveal, Report, Accuse and the record. It is a pure function of public inputs. Nobody
# hears of it before Commit, and if the attempt is discarded, or the next roles ask for no gradient, it was computed in vain.


# D coordinates


@dataclass(frozen=True)
class NextModel(Generic[T]):
    """The training state that an attempt's aggregates lead to, if nothing comes in between; computed once, when it is needed."""

    attempt: Attempt[T]
    aggregate_D: Tensor
    norm: float  # of the aggregate

    @property
    def contributors_suffice(self) -> bool:
        """Whether enough members take part and contribute for the model to move (SPEC G2)."""
        return self.attempt.context.state.roster.moves(len(self.attempt.members), len(self.attempt.roots))

    @cached_property
    def factor(self) -> float:
        """Factor of the aggregate: no update is longer than U3 allows."""
        return update_factor(self.norm, self.attempt.context.state.scales.longest_update(self.attempt.length))

    @cached_property
    def training(self) -> T:
        """The optimizer's step."""
        state, peer = self.attempt.context.state, self.attempt.context.peer
        update_D = peer.tools.scaled(self.aggregate_D, self.factor)
        return peer.work.update(state.training, update_D, state.scales.updates)


def expect_this_step(context: StepContext[T]) -> None:
    """Name the gradients that this peer's roles ask for; a validator's own, begun before roles were drawn, is none of them."""
    mine = [(context.state.training, own_seed(context))] if context.contributes else []
    context.peer.work.expect([*mine, *audits_of(context)])


def expect_next_step(attempt: Attempt[T], clipped: Clipped, *, audits: bool) -> NextModel[T] | None:
    """Name the next step's gradient, behind audits that are still to be made; None while an aggregate is missing."""
    if clipped.aggregate_D is None:
        return None
    context, following = attempt.context, NextModel(attempt, clipped.aggregate_D, clipped.norm)
    if context.peer.work.looks_ahead and following.contributors_suffice and not context.peer.observing:
        seed = gradient_seed(context.state.randomness, context.peer.me)
        context.peer.work.expect([*(audits_of(context) if audits else ()), (following.training, seed)])
    return following


def own_seed(context: StepContext[T]) -> Seed:
    """This peer's public seed in this step, from the draw before last (SPEC R2)."""
    return gradient_seed(context.state.earlier_randomness, context.peer.me)


def measured(context: StepContext[T]) -> Measured | None:
    """Times to announce (SPEC Q8): waiting for a gradient that was begun before says little about how long one takes."""
    peer = context.peer
    times, ahead_ms = peer.noticed.latencies(context.state.step), math.ceil(1000 * peer.work.took_ahead())
    return times and msgspec.structs.replace(times, compute=max(times.compute, min(ahead_ms, MOST_MILLISECONDS)))


def audits_of(context: StepContext[T]) -> Sequence[tuple[T, Seed]]:
    """Gradients of the last step that this peer is to recompute; older ones are rare, and their states may lie on a disk."""
    last = context.state.audit_records.get(context.state.step - 1)
    if last is None or context.peer.observing:
        return ()
    targets = [due.target for due in context.roles.audits.get(context.peer.me, ()) if due.step == last.step]
    return [(last.training, gradient_seed(last.seed_randomness, target)) for target in targets]
