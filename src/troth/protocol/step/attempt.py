"""One attempt at a step: who takes part in it, who owns what, and what has arrived so far (SPEC N1, N2)."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Generic, TypeVar

from torch import Tensor

from troth.crypto import Digest, PeerId, Signature, Slot, derive
from troth.protocol.core.channel import Delivery, Entry
from troth.protocol.core.coins import Coins, right_openings
from troth.protocol.core.errors import LeftOutError, StalledError, UncertifiedError
from troth.protocol.core.parts import ProvenPart, opens
from troth.protocol.core.records import aggregates_basis, record_bytes_to_sign, reports_basis, roots_basis
from troth.protocol.core.rejoin import right_requests
from troth.protocol.core.roles import Roles, draw_roles
from troth.protocol.core.scales import lower_median, part_taus, whole_norm
from troth.protocol.core.state import Peer, State
from troth.protocol.wire.messages import Announced, Center, Clip, Commit, Phase, ReportNumbers, said_as
from troth.protocol.wire.primitives import Primitives

# D coordinates
T = TypeVar("T")
Announcements = Mapping[PeerId, Announced]


class AttemptAborted(Exception):  # noqa: N818 (a turn of events, not an error)
    """These are out of the step, or these parts did not reach their owner; the attempt is repeated (SPEC N1, N5)."""

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
        self.undecided = (
            undecided or {}
        )  # of the disputed: handed round, but nobody can tell; and who says that it came
        self.missed = missed or {}  # who says that whose parts did not come (SPEC F1)


@dataclass(frozen=True)
class StepContext(Generic[T]):
    """This peer in this step: where its messages belong, and what its roles are."""

    peer: Peer[T]
    state: State[T]
    roles: Roles

    @classmethod
    def at(cls, peer: Peer[T], state: State[T]) -> "StepContext[T]":
        return cls(peer, state, draw_roles(peer.run, state.roster, state.randomness, state.pending_audits))

    def slot(self, phase: Phase, attempt: int = 0) -> Slot:
        return Slot(self.peer.run.id, self.state.step, phase, attempt, self.state.incarnation)

    @property
    def contributes(self) -> bool:
        return self.peer.me in self.roles.owners and not self.peer.observing

    @cached_property
    def disputed_links(self) -> dict[PeerId, frozenset[PeerId]]:
        """Who does not reach whom (SPEC F2)."""
        return self.state.roster.disputed_links()

    def entry(
        self,
        members: frozenset[PeerId],
        *,
        awaited: Mapping[int, frozenset[PeerId]] = MappingProxyType({}),
        far: Mapping[int, frozenset[PeerId]] = MappingProxyType({}),
        admitted: frozenset[PeerId] = frozenset(),
        audits: int = 1,
        disputed: int = 1,
    ) -> Entry:
        """What an attempt among these is like for this peer."""
        roster = self.state.roster
        return Entry(
            members=members,
            step=self.state.step,
            awaited=awaited,
            disputed_links=self.disputed_links,
            far=far,
            admitted=admitted,
            audits=audits,
            disputed=disputed,
            liars=roster.liars,
            quorum=roster.quorum,
        )

    @cached_property
    def taus(self) -> tuple[float, ...]:
        """The clipping radius of every part."""
        return part_taus(self.state.scales.tau, self.roles.bounds)


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """Clip to Vote, without those who are out. Gradients and part bounds stay; coins are fresh."""

    context: StepContext[T]
    number: int
    out: frozenset[PeerId]
    coins: Coins
    commits: Announcements
    received: Mapping[int, Mapping[PeerId, ProvenPart]] = field(default_factory=dict)  # parts that this peer owns
    just_out: frozenset[PeerId] = frozenset()  # because of the attempt before
    disputed: frozenset[Delivery] = frozenset()  # what owners did not get, by their own account in the last attempt
    undecided: Mapping[Delivery, frozenset[PeerId]] = field(default_factory=dict)  # of these: handed round before
    witnessed: Mapping[Delivery, ProvenPart] = field(default_factory=dict)  # others' parts that this peer is to pass on

    @classmethod
    def first(cls, context: StepContext[T], coins: Coins, commits: Announcements) -> "Attempt[T]":
        """Without those who did not commit, or not as their role asks."""
        members, owners = frozenset(context.state.roster.members), context.roles.owners
        heard = {peer: commits[peer] for peer in sorted(members & commits.keys())}
        counted = {
            peer: said
            for peer, said in heard.items()
            if (_root(said) is not None) == (peer in owners)
            and signs_last(context, said)
            and lists_requests(context, said)
        }
        attempt = cls(context, 0, members - counted.keys(), coins, counted)
        if attempt.certifies_last and context.state.last is not None:
            context.peer.certified(context.state.last.record, attempt.certificate)  # also if this peer is left out here
        attempt._checked().need_certificate()
        return attempt

    def again(self, why: AttemptAborted) -> "Attempt[T]":
        """The next attempt: fresh coins, so that nobody knows what will be drawn (SPEC N2)."""
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
        """Nobody goes on alone: not without being heard, and not without a quorum (SPEC N4)."""
        if self.context.peer.me in self.out and not self.context.peer.observing:
            raise LeftOutError(f"step {self.context.state.step} goes on without this peer")
        self.need_quorum(self.members)
        return self

    @cached_property
    def members(self) -> frozenset[PeerId]:
        """Who takes part in this attempt, as contributor or not."""
        return frozenset(self.context.state.roster.members) - self.out

    def expect(self, heard: Collection[PeerId]) -> None:
        """Whoever takes part but is not among these is out (SPEC N1)."""
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
        """The signatures of the last record that came with the Commits (SPEC U2)."""
        said = {peer: said_as(announced, Commit).signature for peer, announced in self.commits.items()}
        return {peer: Signature(signature) for peer, signature in said.items() if signature is not None}

    @property
    def certifies_last(self) -> bool:
        last = self.context.state.last
        return last is None or len(self.certificate) >= last.quorum

    def need_certificate(self) -> None:
        """All hold the same Commits, so all go on or none does: signatures cannot be handed to some only (SPEC U2)."""
        last = self.context.state.last
        if last is not None and not self.certifies_last:
            raise UncertifiedError(
                f"step {last.record.step}: {len(self.certificate)} signed its record, {last.quorum} are needed"
            )

    @cached_property
    def length(self) -> float:
        """How long gradients are, as announced: the lower median over the contributors of this attempt (SPEC V3)."""
        lengths = [said_as(self.commits[peer], Commit).length for peer in self.roots]
        return lower_median([length for length in lengths if length is not None])

    @cached_property
    def roots(self) -> dict[PeerId, Digest]:
        """What the contributors of this attempt committed to, in the order of keys."""
        found = {peer: _root(self.commits[peer]) for peer in sorted(set(self.context.roles.owners) - self.out)}
        return {peer: root for peer, root in found.items() if root is not None}

    @cached_property
    def basis(self) -> Digest:
        """What aggregates are made from: signed with them, so that they speak for themselves (SPEC E2)."""
        return roots_basis(self.roots, self.context.state.scales.tau)

    @cached_property
    def owners(self) -> tuple[PeerId, ...]:
        return tuple(self.context.roles.owner_of(part, self.out) for part in range(len(self.context.roles.owners)))

    @cached_property
    def my_parts(self) -> list[int]:
        return [part for part, owner in enumerate(self.owners) if owner == self.context.peer.me]

    def newly_owned(self, part: int) -> bool:
        """Whether the part has to be sent again: in the first attempt every part, later those whose owner went out."""
        return self.number == 0 or self.context.roles.owner_of(part, self.out - self.just_out) != self.owners[part]

    def relay(self, one: PeerId, other: PeerId) -> PeerId | None:
        """Who carries blobs between two who are apart: drawn anew in every step among those who are apart from neither, so that
        what does not come this way sets another pair apart (SPEC F2)."""
        disputed_links = self.context.disputed_links
        able = sorted(
            self.members - {one, other} - disputed_links.get(one, frozenset()) - disputed_links.get(other, frozenset())
        )
        draw = derive(self.context.state.randomness, "relay", min(one, other), max(one, other))
        return able[int.from_bytes(draw) % len(able)] if able else None

    @cached_property
    def relays(self) -> dict[Delivery, PeerId | None]:
        """Parts that do not go to their owner directly, since it and the contributor are apart (SPEC F2)."""
        return {
            (part, contributor): self.relay(owner, contributor)
            for part, owner in enumerate(self.owners)
            if owner in self.context.disputed_links and self.newly_owned(part)
            for contributor in sorted(self.context.disputed_links[owner] & self.roots.keys())
        }

    @cached_property
    def handed_round(self) -> list[Delivery]:
        """Parts that go to everyone, in a fixed order: those in dispute, and those that nobody can carry (SPEC N5)."""
        stranded = {delivery for delivery, relay in self.relays.items() if relay is None}
        disputed = {(part, who) for part, who in self.disputed if who in self.roots and not self.newly_owned(part)}
        return sorted(stranded | disputed)

    def to_witness(self, peer: PeerId) -> list[Delivery]:
        """Parts that go through this peer's hands: it says in Clip which of them came."""
        return sorted({*self.handed_round, *(delivery for delivery, relay in self.relays.items() if relay == peer)})

    def receiving(self, proven_parts: Mapping[int, Mapping[PeerId, ProvenPart]]) -> "Attempt[T]":
        """With these parts, where they were asked for: what somebody sends again must not replace what has arrived."""
        asked = {part: proven_parts[part] for part in self.my_parts if part in proven_parts and self.newly_owned(part)}
        return replace(self, received={**self.received, **asked})

    def carrying(self, proven_parts: Iterable[tuple[Delivery, ProvenPart]]) -> "Attempt[T]":
        """With others' parts that this peer is to pass on: of several, one that is what was committed to."""
        fitting = {delivery: proven for delivery, proven in proven_parts if self.fits(delivery, proven)}
        return replace(self, witnessed={**self.witnessed, **fitting})

    def served(self, proven_parts: Mapping[Delivery, ProvenPart]) -> "Attempt[T]":
        """With parts of one's own that others passed on, whoever did (SPEC N5)."""
        received = {part: dict(senders) for part, senders in self.received.items()}
        for (part, contributor), proven in proven_parts.items():
            received.setdefault(part, {})[contributor] = proven
        return replace(self, received=received)

    def fits(self, delivery: Delivery, proven: ProvenPart) -> bool:
        """Whether this is what the contributor committed to there."""
        part, contributor = delivery
        return opens(proven, part, self.context.roles.bounds, self.roots[contributor], self.context.peer.tools)

    def slot(self, phase: Phase) -> Slot:
        return self.context.slot(phase, self.number)

    def span(self, part: int) -> tuple[int, int]:
        return self.context.roles.bounds[part], self.context.roles.bounds[part + 1]

    def right_coins(self, which: str, clips: Announcements, shown: Mapping[PeerId, bytes]) -> dict[PeerId, bytes]:
        """The opened coins that fit what was committed to: in Commit for the first attempt, in Clip later (SPEC N2)."""
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
    """What owners announced about their aggregates, and those that arrived as announced."""

    clips: Announcements
    centers: Mapping[int, Center]  # by part
    held: Mapping[int, bytes]  # by part
    rows: Mapping[int, Tensor]  # what contributors committed to, for the parts that this peer owns


@dataclass(frozen=True)
class Reduced:
    """The aggregate as everyone holds it, fixed before the key of the projections was known."""

    clipped: Clipped
    aggregate_D: Tensor
    projection_key: Digest
    tau: float

    @cached_property
    def basis(self) -> Digest:
        """What reports are about (SPEC E2)."""
        return aggregates_basis(self.digests, self.projection_key, self.tau)

    @property
    def digests(self) -> tuple[Digest, ...]:
        """Of the aggregates of all parts."""
        return tuple(Digest(self.clipped.centers[part].digest) for part in sorted(self.clipped.centers))

    @property
    def norm(self) -> float:
        """How long the aggregate is: the announced norms of its parts fit their blobs exactly (SPEC A3)."""
        return whole_norm(center.norm for center in self.clipped.centers.values())


@dataclass(frozen=True)
class Reported:
    """Everyone's reports under this attempt's projections."""

    announced: Announcements
    numbers: Mapping[PeerId, ReportNumbers]

    def basis(self, tools: Primitives) -> Digest:
        """What accusations are made from (SPEC E2)."""
        return reports_basis({peer: tools.digest(self.announced[peer].envelope.payload) for peer in self.numbers})


def signs_last(context: StepContext[T], commit: Announced) -> bool:
    """Whether it carries its sender's signature under the last record; who was no member in that step has none to give."""
    last, signature = context.state.last, said_as(commit, Commit).signature
    if last is None or commit.sender not in last.record.members:
        return signature is None
    signed = record_bytes_to_sign(context.peer.run.id, last.record.step, commit.sender, last.digest)
    return signature is not None and context.peer.tools.verify(commit.sender, signed, signature)


def lists_requests(context: StepContext[T], commit: Announced) -> bool:
    """Whether everything that it lists is a request to come back, signed for this step, one for each who is absent (SPEC B3)."""
    rejoins = said_as(commit, Commit).rejoins
    if not rejoins:
        return True
    right = right_requests(context.slot(Phase.REJOIN), rejoins, context.state.roster, context.peer.tools)
    return len(right) == len(rejoins)


def _root(commit: Announced) -> Digest | None:
    assert isinstance(commit.message, Commit)
    return None if commit.message.root is None else Digest(commit.message.root)
