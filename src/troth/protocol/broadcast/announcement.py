"""One announcement as a state machine: agreement on every member's value in spite of liars (SPEC Q1–Q6, Q9, F1, F2).

Frames and the time go in, frames come out; nothing here waits, sends or reads a clock. The quiet path takes two message delays:
all values, then all views, without missing members. If these do not make a certificate, the fallback decides: values travel
in chains of signatures, round by round, as in Dolev–Strong broadcast. It needs no honest majority, only that honest members
reach each other (SPEC Q4–Q6).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from troth.crypto import Digest, Identity, PeerId, Slot, signed_bytes, tagged_hash
from troth.protocol.core.channel import Blame
from troth.protocol.wire.frames import Agreement as Frame
from troth.protocol.wire.frames import Certificate, Chained, Relayed, Value, View
from troth.protocol.wire.messages import Envelope
from troth.protocol.wire.primitives import Primitives

Seen = tuple[bytes | None, tuple[bytes, ...]]  # content of a view: the digest of the values, and the missing members

_MOST_SECOND_VIEWS = 2  # from one bringer, of one signer

_Said = tuple[bytes | None, tuple[bytes, ...], tuple[bytes, ...]]  # values, missing, disconnected


@dataclass(frozen=True)
class Timing:
    """Start and deadlines of an announcement for this peer."""

    start: float  # differs by at most delta between honest peers
    allowance: float  # for computing and for blobs, before values are due
    delta: float  # bound on the time of a frame between honest peers
    relayed: bool = False  # some frames are relayed across link disputes, and take longer (SPEC F2)

    @cached_property
    def values_due(self) -> float:
        return self.start + self.allowance + 2 * self.delta

    @cached_property
    def relayed_values_due(self) -> float:
        return self.values_due + 2 * self.delta

    @cached_property
    def views_due(self) -> float:
        return (self.relayed_values_due if self.relayed else self.values_due) + 2 * self.delta


@dataclass(frozen=True)
class Decision:
    """The end of an announcement, the same at every honest member. Members in neither map were silent."""

    said: Mapping[PeerId, Envelope]
    equivocations: Mapping[PeerId, tuple[Envelope, Envelope]]  # two different values, both signed: proof of a lie


def rounds(members: int, liars: int) -> int:
    """Number of rounds in the fallback (SPEC Q6). Members that are out may all be honest, so liars are no share of the rest."""
    return max(1, min(members - 1, max((members + 1) // 2, liars + 1)))


def proves(
    slot: Slot, members: frozenset[PeerId], certificate: Certificate, tools: Primitives, quorum: int | None
) -> bool:
    """Tell whether all members but the missing and the broken-off ones signed the certificate's view, and the signers are a
    quorum (SPEC Q9)."""
    gone, broken_off = frozenset(certificate.gone), frozenset(certificate.broken_off)
    unsigned = gone | broken_off
    if unsigned and (quorum is None or len(certificate.views) < quorum or not unsigned <= members):
        return False
    signed = view_bytes(slot, certificate.values, certificate.gone, certificate.broken_off)
    return (
        not gone & broken_off
        and certificate.views.keys() == members - unsigned
        and all(tools.verify(PeerId(peer), signed, signature) for peer, signature in certificate.views.items())
    )


def _bytes(tag: str, slot: Slot, *parts: bytes) -> bytes:
    return tagged_hash(tag, signed_bytes(slot, PeerId(bytes(32)), Digest(bytes(32))), *parts)


def values_digest(digests: Mapping[PeerId, Digest]) -> Digest:
    """Digest of values and of whose they are: with other members it is another."""
    return tagged_hash("troth/values/1", *(part for peer in sorted(digests) for part in (peer, digests[peer])))


def view_bytes(slot: Slot, values: bytes | None, gone: Iterable[bytes] = (), broken_off: Sequence[bytes] = ()) -> bytes:
    if broken_off:  # another tag and a count: no first view is a second one, whoever is named
        count = len(broken_off).to_bytes(4, "big")
        return _bytes("troth/second-view/1", slot, values or b"", count, *broken_off, *gone)
    return _bytes("troth/view/2", slot, values or b"", *gone)


def chain_bytes(slot: Slot, originator: bytes, digest: bytes) -> bytes:
    return _bytes("troth/chain/1", slot, originator, digest)


class MoreThanHalf:
    """Senders heard so far, and the time at which they were more than half of the members."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._heard: set[PeerId] = set()
        self.at: float | None = None

    def hear(self, sender: PeerId, now: float) -> None:
        self._heard.add(sender)
        if self.at is None and 2 * len(self._heard) > self._members:
            self.at = now


class SecondViews:
    """Second views of one announcement, this peer's own included: members that break off between their value and their view are
    not waited for (SPEC Q9). The signatures were checked."""

    def __init__(self) -> None:
        self._signatures: dict[_Said, dict[PeerId, bytes]] = {}
        self._brought: Counter[tuple[PeerId, PeerId]] = Counter()
        self.mine: View | None = None

    def sign(self, me: PeerId, view: View) -> View:
        self.mine = view
        self._add(me, view)
        return view

    def hear(self, sender: PeerId, view: View, via: PeerId) -> None:
        self._brought[via, sender] += 1
        if self._brought[via, sender] <= _MOST_SECOND_VIEWS:
            self._add(sender, view)

    def _add(self, sender: PeerId, view: View) -> None:
        self._signatures.setdefault((view.values, view.gone, view.broken_off), {})[sender] = view.signature

    def certificate(self, spoke: frozenset[PeerId]) -> Certificate | None:
        """Equal second views of all members that spoke and have not disconnected, if they are here."""
        mine = self.mine
        if mine is None or mine.values is None:
            return None
        signed = self._signatures[mine.values, mine.gone, mine.broken_off]
        wanted = sorted(spoke - set(mine.broken_off))
        if not all(peer in signed for peer in wanted):
            return None
        return Certificate(mine.values, {peer: signed[peer] for peer in wanted}, {}, mine.gone, mine.broken_off)


class Announcement:
    """One member's side of one announcement. `hear` takes frames, `tick` the time; `take` gives the frames to send to all."""

    def __init__(
        self,
        slot: Slot,
        identity: Identity,
        members: Iterable[PeerId],
        timing: Timing,
        tools: Primitives,
        disputed_links: frozenset[PeerId] = frozenset(),  # members whose frames are relayed to this peer (SPEC F2)
        liars: int = 0,  # L, the most liars among the members
        quorum: int | None = None,  # least number of members that are not missing (SPEC Q9); None: none may be missing
    ) -> None:
        self._slot = slot
        self._identity = identity
        self._me = identity.peer
        self._members = tuple(sorted(members))
        self._timing = timing
        self._tools = tools
        self._rounds = rounds(len(self._members), liars)
        self._direct: dict[PeerId, dict[Digest, Envelope]] = {}  # values as they came from their senders
        self._equivocated = False  # a member sent two values
        self._slow_since: float | None = None
        self._accepted: dict[PeerId, dict[Digest, Envelope]] = {}
        self._early: dict[PeerId, dict[Digest, Chained]] = {}  # chains that came before this peer's rounds began
        self._round_now = 1
        self._over = False
        self._decided_at: float | None = None
        self._out: list[Frame] = []
        self.decision: Decision | None = None
        self._disputed_links = disputed_links
        self._quorum = quorum
        self._gone: frozenset[PeerId] = frozenset()  # members whose connection is closed, as the link says
        self._views: dict[PeerId, dict[Seen, View]] = {}  # of a liar two: one that fits is enough
        self._half_viewed = MoreThanHalf(len(self._members))  # members whose views have come, in time or not
        self._brought: Counter[tuple[PeerId, PeerId]] = Counter()  # views, by bringer and signer
        self._viewed_at: float | None = None  # when this peer signed its view
        self._certifiers: dict[PeerId, bytes | None] = {}  # with their signatures, not checked
        self._half_certified = MoreThanHalf(len(self._members))
        self._in_time: frozenset[PeerId] = frozenset()  # members whose values were there when the view was signed
        self._seen: Seen | None = None  # content of this peer's view, if complete
        self._certificate: Certificate | None = None
        self._second_views = SecondViews()
        self.blame = Blame()

    # The peer itself

    def say(self, envelope: Envelope, now: float) -> None:
        """Announce this peer's value; a peer that is no member of the announcement is not heard."""
        if self._me not in self._members:
            return
        self._direct.setdefault(self._me, {})[self._tools.digest(envelope.payload)] = envelope
        self._out.append(Value(envelope))
        self.tick(now)

    def broken_off(self, gone: Collection[PeerId]) -> None:
        """Set the peers whose connection is closed at this moment; to be called before `hear` and `tick` if it changed."""
        self._gone = frozenset(gone) - self._disputed_links  # links in dispute are bad anyway: others relay (SPEC F2)

    @property
    def deadline(self) -> float | None:
        """Time at which `tick` has something to do next, if nothing is heard before."""
        if self.decision is not None:
            return None
        if self._slow_since is not None:
            return self._round_end(self._round_now)
        return self._timing.views_due if self._viewed_at is not None else self._values_due

    @property
    def ends(self) -> float | None:
        """Time from which the next announcement counts (SPEC Q7): the end of the last round or, with a certificate, the moment
        it came, since all honest members have it within delta of the first (SPEC Q3, Q5). Final once there is a decision."""
        if self._certificate is None and self._slow_since is not None:
            return self._round_end(self._rounds)
        return self._decided_at

    @property
    def lag(self) -> float:
        """Measured delta: from this peer's certificate until those of more than half; in the fallback, the same for views.

        More than half, so that late liars do not count. Not views on the quiet path: a liar whose value comes to some members
        early and to others late makes the former wait for the views of the latter (SPEC Q8).
        """
        if self._certificate is not None:
            began, there = self._decided_at, self._half_certified.at
        else:
            began, there = self._viewed_at, self._decided_at if self._half_viewed.at is None else self._half_viewed.at
        return 0.0 if began is None or there is None else max(0.0, there - began)

    @property
    def _values_due(self) -> float:
        """Deadline for values: later, if a missing value may still be relayed to this peer."""
        if self._disputed_links and not self._disputed_links.isdisjoint(set(self._members) - self._direct.keys()):
            return self._timing.relayed_values_due
        return self._timing.values_due

    def take(self) -> list[Frame]:
        """Frames to be sent to all other members."""
        if not self._out:
            return []
        out, self._out = self._out, []
        return out

    @property
    def heard(self) -> dict[PeerId, Envelope]:
        """First value of each member heard so far."""
        return {peer: next(iter(values.values())) for peer, values in self._direct.items()}

    def _remember(self, sender: PeerId, envelope: Envelope) -> None:
        known = self._direct.setdefault(sender, {})
        if len(known) < 2:
            known[self._tools.digest(envelope.payload)] = envelope
            self._equivocated |= len(known) == 2

    # The clock

    def tick(self, now: float) -> None:
        if self.decision is not None:
            return
        if self._slow_since is None:
            if self._viewed_at is None and (self._missing(now) is not None or now >= self._values_due):
                self._sign_view(now)
            self._certify(now)
            self._go_without_broken_off(now)
            if self.decision is None and self._viewed_at is not None and now >= self._timing.views_due:
                self._go_slow(now)  # by this peer's clock alone: else a liar could cut off frames still on their way
        self._go_through_rounds(now)

    # Frames from others

    def hear(self, sender: PeerId, frame: Frame, now: float, via: PeerId | None = None) -> None:
        """Take a frame of a member; one that does not fit is ignored."""
        self.tick(now)
        if sender not in self._members:
            return
        match frame:
            case Value(envelope):
                if self._viewed_at is None and self._tools.genuine(self._slot, sender, envelope):
                    self._remember(sender, envelope)
            case View():
                if self._signed(sender, frame):
                    self._remember_view(sender, frame, now, via or sender)
            case Certificate():
                self._hear_certificate(frame, now)
                self._count_certificate(sender, frame.chain.get(sender), now)
            case Chained():
                self._hear_chained(frame)
            case Relayed(originator, relayed):
                if originator in self._disputed_links:
                    self.hear(PeerId(originator), relayed, now, via=sender)
        self.tick(now)

    # The quiet path

    def _missing(self, now: float) -> tuple[PeerId, ...] | None:
        """Missing members, if they will not be heard any more and the others are a quorum; else None (SPEC Q9)."""
        if self._equivocated:
            return None
        if len(self._direct) == len(self._members):
            return ()
        if self._quorum is None or len(self._direct) < self._quorum:
            return None
        missing = tuple(peer for peer in self._members if peer not in self._direct)
        return missing if now >= self._values_due or self._gone.issuperset(missing) else None

    def _sign_view(self, now: float) -> None:
        self._viewed_at = now
        self._in_time = frozenset(self._direct)
        missing = self._missing(now)
        self._seen = None if missing is None else (self._values_digest(), missing)
        seen = self._seen or (None, ())
        view = View(seen[0], self._identity.sign(view_bytes(self._slot, *seen)), seen[1])
        self._views[self._me] = {seen: view}
        self._half_viewed.hear(self._me, now)
        self._out.append(view)

    def _values_digest(self) -> Digest:
        return values_digest({peer: next(iter(values)) for peer, values in self._direct.items()})

    def _certify(self, now: float) -> None:
        """Decide by equal complete views of all members that are not missing, and hand them to all, so that no member decides
        much later than others (SPEC Q3)."""
        if self._seen is None or len(self._views) < len(self._in_time):
            return
        seen = self._seen
        views = {peer: self._views[peer][seen] for peer in self._in_time if seen in self._views.get(peer, ())}
        if len(views) == len(self._in_time):
            assert seen[0] is not None
            signatures: dict[bytes, bytes] = {peer: views[peer].signature for peer in sorted(views)}
            self._hold(Certificate(seen[0], signatures, {}, seen[1]), now)

    def _go_without_broken_off(self, now: float) -> None:
        """Sign a second view if members broke off after they spoke, and decide by equal ones of all others (SPEC Q9)."""
        if self._seen is None or self._quorum is None or self.decision is not None:
            return
        seen = self._seen
        broken_off = tuple(sorted(p for p in self._in_time & self._gone if seen not in self._views.get(p, ())))
        if self._second_views.mine is None and broken_off and len(self._in_time) - len(broken_off) >= self._quorum:
            signature = self._identity.sign(view_bytes(self._slot, *seen, broken_off))
            self._out.append(self._second_views.sign(self._me, View(seen[0], signature, seen[1], broken_off)))
        if (certificate := self._second_views.certificate(self._in_time)) is not None:
            self._hold(certificate, now)

    def _hold(self, certificate: Certificate, now: float) -> None:
        mine = self._identity.sign(chain_bytes(self._slot, b"", certificate.values))
        self._certificate = replace(certificate, chain={**certificate.chain, self._me: mine})
        self._out.append(self._certificate)
        self._count_certificate(self._me, mine, now)
        said = {peer: next(iter(self._direct[peer].values())) for peer in self._members if peer in self._in_time}
        self._decide(Decision(said, {}), now)

    def _count_certificate(self, sender: PeerId, signature: bytes | None, now: float) -> None:
        """Note a member's certificate, checked before this peer decided: each member hands one to all when it decides."""
        self._certifiers.setdefault(sender, signature)
        self._half_certified.hear(sender, now)

    def _hear_certificate(self, certificate: Certificate, now: float) -> None:
        if self.decision is not None:
            return
        same = (certificate.values, certificate.gone) == self._seen
        if self._me in certificate.gone or (self._me in certificate.broken_off and not same):
            if self._proves(certificate):  # this peer is left behind: the others' values do not concern it any more
                self._decide(Decision({}, {}), now)
            return
        if not same or not self._proves(certificate):
            return
        signers = self._signers(b"", certificate.values, certificate.chain)
        if self._slow_since is None or len(signers) >= self._round_now:
            self._hold(replace(certificate, chain=signers), now)  # to all, with one more signature

    def _proves(self, certificate: Certificate) -> bool:
        return proves(self._slot, frozenset(self._members), certificate, self._tools, self._quorum)

    def proof(self, voices: int) -> Certificate | None:
        """The certificate, signed by at least `voices` members: one is honest and has decided by it, so all have (SPEC B2)."""
        if self._certificate is None or len(self._certifiers) < voices:
            return None
        others = {bytes(peer): signature for peer, signature in self._certifiers.items() if signature is not None}
        signers = self._signers(b"", self._certificate.values, {**others, **self._certificate.chain})
        return replace(self._certificate, chain=signers) if len(signers) >= voices else None

    # Rounds

    def _round_end(self, number: int) -> float:
        assert self._slow_since is not None
        return self._slow_since + 2 * self._timing.delta * number

    def _go_through_rounds(self, now: float) -> None:
        while self._slow_since is not None and not self._over and now >= self._round_end(self._round_now):
            if self._round_now == self._rounds:
                self._over = True
                self._decide_by_chains(now)
            else:
                self._round_now += 1

    def _go_slow(self, now: float) -> None:
        """Start the rounds with every value at hand (SPEC Q4)."""
        self._slow_since = now
        for originator, values in self._direct.items():
            for envelope in values.values():
                self._accept(originator, envelope, {})
        for items in self._early.values():
            for item in items.values():
                self._hear_chained(item)

    def _hear_chained(self, item: Chained) -> None:
        originator, digest = PeerId(item.originator), self._tools.digest(item.envelope.payload)
        known = (self._early if self._slow_since is None else self._accepted).get(originator, {})
        if self.decision is not None or digest in known or len(known) == 2 or originator not in self._members:
            return
        signers = self._signers(originator, digest, item.chain)
        if len(signers) < self._round_now or not self._tools.genuine(self._slot, originator, item.envelope):
            return
        if self._slow_since is None:  # a faster member's rounds have begun; this peer's will within delta
            self._early.setdefault(originator, {})[digest] = item
        else:
            self._accept(originator, item.envelope, signers)

    def _accept(self, originator: PeerId, envelope: Envelope, chain: Mapping[bytes, bytes]) -> None:
        digest = self._tools.digest(envelope.payload)
        self._accepted.setdefault(originator, {})[digest] = envelope
        mine = self._identity.sign(chain_bytes(self._slot, originator, digest))
        self._out.append(Chained(originator, envelope, {**chain, self._me: mine}))

    def _signers(self, originator: bytes, digest: bytes, chain: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Right signatures of distinct members beside the originator; only these count and are sent on (SPEC Q5)."""
        return {
            peer: signature
            for peer, signature in chain.items()
            if peer in self._members
            and peer != originator
            and self._tools.verify(PeerId(peer), chain_bytes(self._slot, originator, digest), signature)
        }

    def _decide_by_chains(self, now: float) -> None:
        """Decide after the last round: a value, silence, or an equivocation of every member (SPEC Q6)."""
        if self.decision is not None:
            return
        said = {peer: next(iter(values.values())) for peer, values in self._accepted.items() if len(values) == 1}
        equivocations: dict[PeerId, tuple[Envelope, Envelope]] = {}
        for peer, values in self._accepted.items():
            if len(values) == 2:
                first, second = (values[digest] for digest in sorted(values))
                equivocations[peer] = (first, second)
        self._decide(Decision(said, equivocations), now)
        self.blame = self._blame(said)

    def _blame(self, said: Mapping[PeerId, Envelope]) -> Blame:
        """Members whose value or view did not come in time although they spoke, and those whose view was wrong (SPEC F1)."""
        late = set(said) - self._in_time
        unviewed = set(said) - self._views.keys()
        right = self._right_view(said)
        wrong = {peer for peer, views in self._views.items() if right not in views} if right is not None else set()
        return Blame(frozenset((late | unviewed) - {self._me}), frozenset(wrong - {self._me}))

    def _right_view(self, said: Mapping[PeerId, Envelope]) -> Seen | None:
        """The right view of this decision; None where a member equivocated or too few were heard: then no view is wrong."""
        missing = tuple(peer for peer in self._members if peer not in said)
        if missing and (self._quorum is None or len(said) < self._quorum or not self._accepted.keys() <= said.keys()):
            return None
        return values_digest({peer: self._tools.digest(said[peer].payload) for peer in said}), missing

    # Checks

    def is_of(self, sender: PeerId, frame: Value | View) -> bool:
        """Whether the sender signed this frame for this announcement: others are not relayed."""
        if isinstance(frame, Value):
            return self._tools.genuine(self._slot, sender, frame.envelope)
        return self._signed(sender, frame)

    def _signed(self, sender: PeerId, view: View) -> bool:
        signed = view_bytes(self._slot, view.values, view.gone, view.broken_off)
        return self._tools.verify(sender, signed, view.signature)

    def _remember_view(self, sender: PeerId, view: View, now: float, via: PeerId) -> None:
        """Keep two views from each bringer: else two wrong ones would leave no room for the right one that others relay."""
        if view.broken_off:
            if self._slow_since is None:
                self._second_views.hear(sender, view, via)
            return
        self._brought[via, sender] += 1
        if self._brought[via, sender] <= 2:
            # Later is too late: else a right view afterwards would make up for a wrong one in time.
            if self._slow_since is None:
                self._views.setdefault(sender, {})[view.values, view.gone] = view
            self._half_viewed.hear(sender, now)

    def _decide(self, decision: Decision, now: float) -> None:
        self.decision = decision
        self._decided_at = now
