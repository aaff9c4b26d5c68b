"""Agreement on who said what, among any minority of liars: one announcement as a state machine (SPEC Q1–Q6, Q9, F1, F2).

Frames and the time go in, frames come out; nothing here waits, sends or reads a clock. The quiet path takes two message delays:
everyone's value, then everyone's view of all values, without those who have broken off. If that does not end in a certificate,
values travel in chains of signatures, as in Dolev and Strong's broadcast, which needs no honest majority.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from troth.crypto import Digest, Identity, PeerId, Slot, signed_bytes, tagged_hash
from troth.protocol.core.channel import Blame
from troth.protocol.wire.frames import Agreement as Frame
from troth.protocol.wire.frames import Certificate, Chained, Relayed, Value, View
from troth.protocol.wire.messages import Envelope
from troth.protocol.wire.primitives import Primitives

Seen = tuple[bytes | None, tuple[bytes, ...]]  # what a view is of: the digest of the values, and who has broken off


@dataclass(frozen=True)
class Timing:
    """When an announcement begins for this peer, and how long things take."""

    start: float  # honest peers' differ by no more than delta
    allowance: float  # for computing and for blobs, before values are due
    delta: float  # a frame between honest peers takes no longer
    relayed: bool = False  # whether frames of some are passed on by others (SPEC F2)

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
    """The same at every honest member. Who is in neither has said nothing."""

    said: Mapping[PeerId, Envelope]
    equivocations: Mapping[PeerId, tuple[Envelope, Envelope]]  # two different values, both signed: proof of a lie


class Announcement:
    """One member's part in one announcement. `hear` takes frames, `tick` the time; `take` gives the frames to send to all."""

    def __init__(
        self,
        slot: Slot,
        identity: Identity,
        members: Iterable[PeerId],
        timing: Timing,
        tools: Primitives,
        disputed_links: frozenset[PeerId] = frozenset(),  # whose frames come to me through others
        liars: int = 0,  # that may be among the members
        quorum: int
        | None = None,  # that has to be left if others break off (SPEC Q9); None: nobody is certified as gone
    ) -> None:
        self._disputed_links = disputed_links
        self._slot = slot
        self._identity = identity
        self._me = identity.peer
        self._members = tuple(sorted(members))
        self._timing = timing
        self._tools = tools
        self._quorum = quorum
        self._rounds = rounds(len(self._members), liars)
        self._gone: frozenset[PeerId] = frozenset()  # who has broken off, by what the line says
        self._direct: dict[PeerId, dict[Digest, Envelope]] = {}
        self._views: dict[PeerId, dict[Seen, View]] = {}  # two, of a liar: one that fits is enough
        self._viewers: set[PeerId] = set()  # whose views have come, in time or not
        self._brought: Counter[tuple[PeerId, PeerId]] = Counter()  # views, by who brings whose
        self._equivocated = False  # somebody sent two values
        self._viewed_at: float | None = None  # when the own view was signed
        self._half_viewed_at: float | None = None  # when views of more than half of the members were there
        self._certifiers: dict[PeerId, bytes | None] = {}  # with their signatures, not checked
        self._half_certified_at: float | None = None  # the same for certificates
        self._in_time: frozenset[PeerId] = frozenset()  # whose values were there when the view was signed
        self._seen: Seen | None = None  # all values, if they were, and who was gone
        self._certificate: Certificate | None = None
        self._slow_since: float | None = None
        self._accepted: dict[PeerId, dict[Digest, Envelope]] = {}
        self._early: dict[PeerId, dict[Digest, Chained]] = {}  # chains of members whose rounds began before mine
        self._round_now = 1
        self._over = False
        self._decided_at: float | None = None
        self._out: list[Frame] = []
        self.decision: Decision | None = None
        self.blame = Blame()

    # What the peer itself does

    def say(self, envelope: Envelope, now: float) -> None:
        """Announce; silence is not to call this. Who is not taken to be there is not heard."""
        if self._me not in self._members:
            return
        self._direct.setdefault(self._me, {})[self._tools.digest(envelope.payload)] = envelope
        self._out.append(Value(envelope))
        self.tick(now)

    def take(self) -> list[Frame]:
        """Frames to be sent to all other members."""
        if not self._out:
            return []
        out, self._out = self._out, []
        return out

    def broken_off(self, gone: Collection[PeerId]) -> None:
        """Who is not connected at this moment, and was; said before every `hear` and `tick` where it may have changed."""
        self._gone = (
            frozenset(gone) - self._disputed_links
        )  # the line to these is bad anyway: others say for them (SPEC F2)

    @property
    def _viewed(self) -> bool:
        return self._viewed_at is not None

    @property
    def heard(self) -> dict[PeerId, Envelope]:
        """The first value of each who has said something so far."""
        return {peer: next(iter(values.values())) for peer, values in self._direct.items()}

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do next, if nothing is heard before."""
        if self.decision is not None:
            return None
        if self._slow_since is not None:
            return self._round_end(self._round_now)
        return self._timing.views_due if self._viewed else self._values_due

    @property
    def ends(self) -> float | None:
        """Where the next phase's time counts from: the end of the last round; with a certificate the moment it came, since all
        honest members have it within delta of the first (SPEC Q3, Q5). Final once there is a decision."""
        if self._certificate is None and self._slow_since is not None:
            return self._round_end(self._rounds)
        return self._decided_at

    @property
    def lag(self) -> float:
        """How long others' certificates took after the own one; on the slow path, their views (SPEC Q8).

        More than half of them: a liar's, late, is not needed. Not views on the quiet path: a liar whose value comes to some
        earlier than to others makes those wait for the views of these.
        """
        if self._certificate is not None:
            began, there = self._decided_at, self._half_certified_at
        else:
            began, there = self._viewed_at, self._decided_at if self._half_viewed_at is None else self._half_viewed_at
        return 0.0 if began is None or there is None else max(0.0, there - began)

    @property
    def _values_due(self) -> float:
        """Later, if something that is missing may still be passed on to me."""
        if self._disputed_links and not self._disputed_links.isdisjoint(set(self._members) - self._direct.keys()):
            return self._timing.relayed_values_due
        return self._timing.values_due

    # The clock

    def tick(self, now: float) -> None:
        if self.decision is not None:
            return
        if self._slow_since is None:
            if not self._viewed and (self._missing(now) is not None or now >= self._values_due):
                self._sign_view(now)
            self._certify(now)
            if self.decision is None and self._viewed and now >= self._timing.views_due:
                self._go_slow(now)  # by my clock alone: else a liar could cut off what is still on its way
        while self._slow_since is not None and not self._over and now >= self._round_end(self._round_now):
            if self._round_now == self._rounds:
                self._over = True
                self._decide_by_chains(now)
            else:
                self._round_now += 1

    def _round_end(self, number: int) -> float:
        assert self._slow_since is not None
        return self._slow_since + 2 * self._timing.delta * number

    # Frames from others

    def hear(self, sender: PeerId, frame: Frame, now: float, via: PeerId | None = None) -> None:
        """Whatever a member says; what does not fit is ignored."""
        self.tick(now)
        if sender not in self._members:
            return
        match frame:
            case Value(envelope):
                if not self._viewed and self._genuine(sender, envelope):
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
        """Who was not heard by now and will not be, if the others are enough to go on without them; else None (SPEC Q9)."""
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
        self._count_view(self._me, now)
        self._out.append(view)

    def _values_digest(self) -> Digest:
        return values_digest({peer: next(iter(values)) for peer, values in self._direct.items()})

    def _certify(self, now: float) -> None:
        """Equal complete views of all who are not gone: decide, and hand them to all, so that nobody decides much later than
        others (SPEC Q3)."""
        if self._seen is None or len(self._views) < len(self._in_time):
            return
        seen = self._seen
        views = {peer: self._views[peer][seen] for peer in self._in_time if seen in self._views.get(peer, ())}
        if len(views) == len(self._in_time):
            assert seen[0] is not None
            signatures: dict[bytes, bytes] = {peer: views[peer].signature for peer in sorted(views)}
            self._hold(Certificate(seen[0], signatures, {}, seen[1]), now)

    def _hold(self, certificate: Certificate, now: float) -> None:
        self._certificate = self._with_my_signature(certificate)
        self._out.append(self._certificate)
        self._count_certificate(self._me, self._certificate.chain[self._me], now)
        said = {peer: next(iter(self._direct[peer].values())) for peer in self._members if peer in self._in_time}
        self._decide(Decision(said, {}), now)

    def _count_certificate(self, sender: PeerId, signature: bytes | None, now: float) -> None:
        """Everyone hands one to all when it decides; what is in it was checked then, or does not matter any more."""
        self._certifiers.setdefault(sender, signature)
        if self._half_certified_at is None and 2 * len(self._certifiers) > len(self._members):
            self._half_certified_at = now

    def _with_my_signature(self, certificate: Certificate) -> Certificate:
        mine = self._identity.sign(chain_bytes(self._slot, b"", certificate.values))
        return with_chain(certificate, {**certificate.chain, self._me: mine})

    def _hear_certificate(self, certificate: Certificate, now: float) -> None:
        if self.decision is not None:
            return
        if self._me in certificate.gone:
            if self._proves(certificate):  # the others go on without me; what they said is nothing to me any more
                self._decide(Decision({}, {}), now)
            return
        if (certificate.values, certificate.gone) != self._seen or not self._proves(certificate):
            return
        signers = self._signers(b"", certificate.values, certificate.chain)
        if self._slow_since is None or len(signers) >= self._round_now:
            self._hold(with_chain(certificate, signers), now)  # to all, with one more signature

    def _proves(self, certificate: Certificate) -> bool:
        return proves(self._slot, frozenset(self._members), certificate, self._tools, self._quorum)

    def proof(self, voices: int) -> Certificate | None:
        """The certificate, signed by so many members that one is honest: it has decided by it, so all have (SPEC B2)."""
        if self._certificate is None or len(self._certifiers) < voices:
            return None
        others = {bytes(peer): signature for peer, signature in self._certifiers.items() if signature is not None}
        signers = self._signers(b"", self._certificate.values, {**others, **self._certificate.chain})
        return with_chain(self._certificate, signers) if len(signers) >= voices else None

    # The slow path

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
        if len(signers) < self._round_now or not self._genuine(originator, item.envelope):
            return
        if self._slow_since is None:  # a faster member's rounds have begun; mine will within delta
            self._early.setdefault(originator, {})[digest] = item
        else:
            self._accept(originator, item.envelope, signers)

    def _accept(self, originator: PeerId, envelope: Envelope, chain: Mapping[bytes, bytes]) -> None:
        digest = self._tools.digest(envelope.payload)
        self._accepted.setdefault(originator, {})[digest] = envelope
        mine = self._identity.sign(chain_bytes(self._slot, originator, digest))
        self._out.append(Chained(originator, envelope, {**chain, self._me: mine}))

    def _signers(self, originator: bytes, digest: bytes, chain: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """The distinct members beside its originator who signed it; only these are passed on (SPEC Q5)."""
        return {
            peer: signature
            for peer, signature in chain.items()
            if peer in self._members
            and peer != originator
            and self._tools.verify(PeerId(peer), chain_bytes(self._slot, originator, digest), signature)
        }

    def _decide_by_chains(self, now: float) -> None:
        """After the last round: one value, none, or two (SPEC Q6)."""
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
        """Whoever spoke in the end, but not to me in time; and whose view was wrong (SPEC F1)."""
        late = set(said) - self._in_time
        unviewed = set(said) - self._views.keys()
        right = self._right_view(said)
        wrong = {peer for peer, views in self._views.items() if right not in views} if right is not None else set()
        return Blame(frozenset((late | unviewed) - {self._me}), frozenset(wrong - {self._me}))

    def _right_view(self, said: Mapping[PeerId, Envelope]) -> Seen | None:
        """What everyone should have seen; None where somebody was double, or too few were left, and views have no say."""
        missing = tuple(peer for peer in self._members if peer not in said)
        if missing and (self._quorum is None or len(said) < self._quorum or not self._accepted.keys() <= said.keys()):
            return None
        return values_digest({peer: self._tools.digest(said[peer].payload) for peer in said}), missing

    def _decide(self, decision: Decision, now: float) -> None:
        self.decision = decision
        self._decided_at = now

    # Checks

    def is_of(self, sender: PeerId, frame: Value | View) -> bool:
        """Whether the sender signed this for this announcement: nothing else is worth passing on."""
        if isinstance(frame, Value):
            return self._genuine(sender, frame.envelope)
        return self._signed(sender, frame)

    def _genuine(self, sender: PeerId, envelope: Envelope) -> bool:
        digest = self._tools.digest(envelope.payload)
        return self._tools.verify(sender, signed_bytes(self._slot, sender, digest), envelope.signature)

    def _signed(self, sender: PeerId, view: View) -> bool:
        return self._tools.verify(sender, view_bytes(self._slot, view.values, view.gone), view.signature)

    def _remember_view(self, sender: PeerId, view: View, now: float, via: PeerId) -> None:
        """Two from each who brings some: else two wrong ones would leave no room for the right one that others pass on."""
        self._brought[via, sender] += 1
        if self._brought[via, sender] <= 2:
            if (
                self._slow_since is None
            ):  # else it is too late: a wrong one in time would pay for the right one afterwards
                self._views.setdefault(sender, {})[view.values, view.gone] = view
            self._count_view(sender, now)

    def _count_view(self, sender: PeerId, now: float) -> None:
        self._viewers.add(sender)
        if self._half_viewed_at is None and 2 * len(self._viewers) > len(self._members):
            self._half_viewed_at = now

    def _remember(self, sender: PeerId, envelope: Envelope) -> None:
        known = self._direct.setdefault(sender, {})
        if len(known) < 2:
            known[self._tools.digest(envelope.payload)] = envelope
            self._equivocated |= len(known) == 2


def rounds(members: int, liars: int) -> int:
    """Of the slow path (SPEC Q6). Whoever is out of the step may have been honest, so the liars are no share of these members."""
    return max(1, min(members - 1, max((members + 1) // 2, liars + 1)))


def proves(
    slot: Slot, members: frozenset[PeerId], certificate: Certificate, tools: Primitives, quorum: int | None
) -> bool:
    """Whether every member signed this view, but for those who have broken off; and the others are enough (SPEC Q9)."""
    gone = frozenset(certificate.gone)
    if gone and (quorum is None or len(certificate.views) < quorum or not gone <= members):
        return False
    return certificate.views.keys() == members - gone and all(
        tools.verify(PeerId(peer), view_bytes(slot, certificate.values, certificate.gone), signature)
        for peer, signature in certificate.views.items()
    )


def with_chain(certificate: Certificate, chain: Mapping[bytes, bytes]) -> Certificate:
    return Certificate(certificate.values, certificate.views, dict(chain), certificate.gone)


def _bytes(tag: str, slot: Slot, *parts: bytes) -> bytes:
    return tagged_hash(tag, signed_bytes(slot, PeerId(bytes(32)), Digest(bytes(32))), *parts)


def values_digest(digests: Mapping[PeerId, Digest]) -> Digest:
    """Of these members' values, and of nobody else's: of other members it is another."""
    return tagged_hash("troth/values/1", *(part for peer in sorted(digests) for part in (peer, digests[peer])))


def view_bytes(slot: Slot, values: bytes | None, gone: Iterable[bytes] = ()) -> bytes:
    return _bytes("troth/view/2", slot, values or b"", *gone)


def chain_bytes(slot: Slot, originator: bytes, digest: bytes) -> bytes:
    return _bytes("troth/chain/1", slot, originator, digest)
