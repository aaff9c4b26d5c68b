"""A stranger at the door: it follows the records and shows tickets, until it has a slot (SPEC J3, J4)."""

from typing import Generic, TypeVar

from troth.crypto import Digest, Identity, Slot
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.door import Door, best_nonce, has_work, signed_ticket
from troth.protocol.core.errors import CannotGoOnError, LeftOutError
from troth.protocol.core.state import Peer
from troth.protocol.recovery.ledger import Ledger
from troth.protocol.recovery.requests import Requests
from troth.protocol.wire.frames import SyncShown, TicketShown
from troth.protocol.wire.messages import Phase, Ticket

T = TypeVar("T")
_PATIENCE = 2  # time before asking again, in units of the least delta
_ASKING = 400  # times that members are asked without an answer


class DoorClosedError(CannotGoOnError):
    """The run takes nobody in, or not this key."""


class Tickets:
    """The search for a ticket: the smaller its number, the better its chance."""

    def __init__(self, run: Digest, key: Identity, address: str) -> None:
        self._run = run
        self._key = key
        self._address = address
        self._nonce = 0
        self._seed: Digest | None = None
        self._best: tuple[Digest, Ticket] | None = None  # its hash, and the ticket

    def search(self, door: Door, hashes: int) -> Ticket | None:
        """The best ticket for this draw after so many more hashes; None if none has enough work in it yet."""
        if door.seed != self._seed:
            self._seed, self._best = door.seed, None
        nonces = range(self._nonce, self._nonce + hashes)
        self._nonce += hashes
        found, nonce = best_nonce(self._run, door.seed, self._key.peer, self._address, nonces)
        if self._best is None or found < self._best[0]:
            self._best = found, signed_ticket(self._run, door.seed, self._key, nonce, self._address)
        return self._best[1] if has_work(self._run, door, self._best[1]) else None


class Knocking(Generic[T]):
    """One stay before the door, over one channel."""

    def __init__(
        self,
        peer: Peer[T],
        requests: Requests,
        ledger: Ledger[T],
        channel: BroadcastChannel,
        address: str,
        hashes: int,
    ) -> None:
        self._peer = peer
        self._requests = requests
        self._ledger = ledger
        self._channel = channel
        self._hashes = hashes
        self._tickets = Tickets(peer.run.id, peer.identity, address)

    async def run(self) -> None:
        """Follow the records until this peer is a candidate, or a member already. Raises if the run will not have it."""
        ledger, listener, me, unanswered = self._ledger, self._channel.listener, self._peer.me, 0
        while me not in {*ledger.state.roster.door.keys, *ledger.state.roster.members}:
            roster = ledger.state.roster
            if ledger.over:
                raise DoorClosedError("the run is over: it ended before this peer had a place")
            if not roster.door.probation:
                raise DoorClosedError("this run takes in nobody but its founders")
            if me in roster.known:
                raise DoorClosedError("this key was banned or expelled, or is another's successor: come with a new one")
            if unanswered >= _ASKING:
                raise LeftOutError("no member showed records that continue this peer's")
            self._channel.stand_outside(frozenset({*self._peer.run.founders, *roster.members}))
            self._ask()
            until, unanswered = listener.now() + _PATIENCE * self._channel.pacing.bounds.delta, unanswered + 1
            while listener.now() < until:
                heard = await listener.hear_outside(until)
                shown = ledger.examine(heard[1]) if heard is not None and isinstance(heard[1], SyncShown) else None
                if shown is not None:
                    ledger.stand_at_tip(shown)
                    unanswered = 0
                    break

    def _ask(self) -> None:
        state, outlet = self._ledger.state, self._channel.outlet
        self._requests.ask(self._channel, state.roster.members, state.step)
        ticket = self._tickets.search(state.roster.door, self._hashes)
        if ticket is not None:
            slot = Slot(self._peer.run.id, state.step, Phase.REJOIN)
            outlet.send_each(slot, state.roster.members, TicketShown(ticket))
