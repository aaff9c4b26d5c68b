"""The slow path of an announcement: values travel in chains of signatures, round by round, as in Dolev–Strong broadcast.

It needs no honest majority, only that honest members reach each other (SPEC Q4–Q6).
"""

from collections.abc import Iterable, Mapping

from troth.crypto import Digest, Identity, PeerId, Slot, signed_bytes
from troth.protocol.broadcast.agreement import Decision, Timing, chain_bytes, rounds
from troth.protocol.wire.frames import Agreement, Chained
from troth.protocol.wire.messages import Envelope
from troth.protocol.wire.primitives import Primitives


class ChainedBroadcast:
    """Rounds of chains, from the values at hand when they begin to a decision that all honest members share."""

    def __init__(
        self, slot: Slot, identity: Identity, members: Iterable[PeerId], timing: Timing, tools: Primitives, liars: int
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
        self._out: list[Agreement] = []
        self.decision: Decision | None = None

    # Values at hand

    def take(self) -> list[Agreement]:
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
        if len(signers) < self._round_now or not self._genuine(originator, item.envelope):
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
        self._decided_by_chains(said)

    def _decided_by_chains(self, said: Mapping[PeerId, Envelope]) -> None:
        """Hook for a subclass that assigns blame."""

    def _decide(self, decision: Decision, now: float) -> None:
        self.decision = decision
        self._decided_at = now

    def _genuine(self, sender: PeerId, envelope: Envelope) -> bool:
        digest = self._tools.digest(envelope.payload)
        return self._tools.verify(sender, signed_bytes(self._slot, sender, digest), envelope.signature)
