"""Seven members of a run, keys of successors, and rejoin requests that they sign."""

from dataclasses import replace
from typing import Any

from tests.protocol.samples import quiet_record
from troth.crypto import Digest, Identity, PeerId, Slot, derive
from troth.protocol.core.roster import Away, Roster
from troth.protocol.core.run import Parameters, Run
from troth.protocol.core.state import signed_request
from troth.protocol.wire.frames import Packet
from troth.protocol.wire.messages import Phase, SignedRejoin
from troth.workshop.simulation.exchange import PowerCutError

IDENTITIES = [Identity.from_secret(derive(0, "comeback", k)) for k in range(12)]
PEERS = sorted(identity.peer for identity in IDENTITIES[:7])
IDENTITY_OF = {identity.peer: identity for identity in IDENTITIES}
SUCCESSORS = [identity.peer for identity in IDENTITIES[7:]]
RUN = Run(tuple(PEERS), b"coming back", Parameters(size=100, tau=0.1, byzantine=2), bytes(32))
LOST = 2  # in worlds, the number of the member that loses power


class SilentLink:
    """A link that nothing comes from; sent packets are kept."""

    def __init__(self) -> None:
        self.sent: list[tuple[PeerId, Packet]] = []

    def now(self) -> float:
        return 0.0

    def send(self, to: PeerId, packet: Packet) -> None:
        self.sent.append((to, packet))

    def gone(self) -> frozenset[PeerId]:
        return frozenset()

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        raise PowerCutError("nothing comes")


def rejoin_slot(step: int, run: Digest = RUN.id) -> Slot:
    """The slot in which requests to rejoin in that step are signed."""
    return Slot(run, step, Phase.REJOIN)


def rejoin_request(member: PeerId, key: PeerId, *, at: int = 6, since: int = 3, incarnation: int = 0) -> SignedRejoin:
    """A rejoin request as a member signs it that fell out in that step."""
    slot = rejoin_slot(at)._replace(incarnation=incarnation)
    return signed_request(slot, IDENTITY_OF[member], IDENTITY_OF[key], since)


def roster_with_one_absent(**given: Any) -> Roster:
    """All but the last are members; that one is absent since step 5, when the model had moved five times."""
    given = {"updates": 8, **given}
    return replace(Roster(tuple(PEERS[:-1]), away=(Away(5, PEERS[-1], 5),)), **given)


def roster_after(roster: Roster, step: int, **said: Any) -> Roster:
    """The roster after a step in which this happened."""
    return roster.after(quiet_record(step, roster.members, **said))
