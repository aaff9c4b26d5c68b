"""Frames and certificates of a restart, and a member that waits for its quorum."""

from functools import cache

from troth.crypto import Digest, Identity, derive
from troth.protocol.recovery.restart import Enough, MemberTip, Patience, RestartQuorum, be_ready
from troth.protocol.wire.frames import RestartCertificate, Waiting
from troth.protocol.wire.primitives import Primitives

IDENTITIES = sorted((Identity.from_secret(derive(0, "gathering", k)) for k in range(9)), key=lambda one: one.peer)
PEERS = [identity.peer for identity in IDENTITIES]
TIP = MemberTip(Digest(bytes(32)), 7, Digest(bytes([7]) * 32))


class _Tools(Primitives):
    """Primitives that check each signature once."""

    verify = staticmethod(cache(Primitives().verify))


def restart_quorum(
    me: int = 0,
    members: int = 5,
    patience: float = 30.0,
    incarnation: int = 1,
    enough: int = 0,
    before: RestartCertificate | None = None,
) -> RestartQuorum:
    """A member that waits for its restart quorum; by default in a run without liars: a majority may begin."""
    majority = members // 2 + 1
    counts = Enough(majority, enough or majority)
    one = RestartQuorum(
        IDENTITIES[me], PEERS[:members], TIP, incarnation, Patience(patience, 10.0, 100.0), _Tools(), counts, before
    )
    one.tick(0.0)
    return one


@cache
def waiting(incarnation: int = 1, tip: MemberTip = TIP) -> Waiting:
    """The frame of a member that waits, and is not ready yet."""
    return Waiting(tip.step, tip.digest, incarnation, None)


@cache
def ready(peer: int, incarnation: int = 1, tip: MemberTip = TIP, least: int = 3) -> Waiting:
    """The frame of a member that is ready to begin with so many."""
    return Waiting(tip.step, tip.digest, incarnation, be_ready(tip, incarnation, IDENTITIES[peer], least))


def proof(*peers: int, incarnation: int = 1, least: int = 3) -> RestartCertificate:
    """The certificate of a restart for which these were ready."""
    said = {bytes(PEERS[peer]): ready(peer, incarnation, least=least).ready for peer in sorted(peers)}
    return RestartCertificate(
        TIP.step, TIP.digest, incarnation, {peer: one for peer, one in said.items() if one is not None}
    )
