"""Strangers of one kind as they act: their search for tickets, and what each of them does in a step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from troth.attacks import GradientAttack
from troth.crypto import Identity, PeerId, derive
from troth.protocol.core.door import Door, misses_few
from troth.protocol.core.roles import draw_roles
from troth.protocol.core.state import Peer, State
from troth.protocol.wire.messages import Ticket
from troth.simulation.lockstep.door.specs import Doing, Names, Strangers
from troth.simulation.lockstep.door.stranger import Stranger
from troth.simulation.lockstep.door.strategies import STRATEGIES, Committed, Due
from troth.training.work import Training

TICKET_BITS = 4  # work in a ticket: a simulated world asks for little
HASHES = (
    1 << 7
)  # of one machine in a step, so that everyone that waits for a draw has a ticket, but for one in four thousand
_AT_ONCE = 16  # hashes that an attacker tries under one name before it goes on to the next


HonestPeer = Callable[[int, Identity], Peer[Training]]
LyingPeer = Callable[
    [Peer[Training], GradientAttack, Callable[[int], bool], Callable[[], State[Training]]], Peer[Training]
]


class Party:
    """All strangers of one spec."""

    def __init__(self, spec: str, kind: Strangers, first: int, seed: int) -> None:
        self.spec = spec
        self.kind = kind
        self.numbers = tuple(range(first, first + kind.count))  # after the founders
        self.identities = [Identity.from_secret(derive(seed, "stranger", number)) for number in self.numbers]
        self.strangers: list[Stranger] = []  # in a run that is there
        self._hashes = 0.0  # that an attacker has not spent yet
        self._next = 0  # name to try next

    def come(self, honest: HonestPeer, lying: LyingPeer) -> None:
        """Give each of them what it needs to take part: liars shield the others, and attack when their kind says so."""
        for number, identity in zip(self.numbers, self.identities, strict=True):
            stranger = Stranger(number, self.kind.knocks(len(self.strangers)), honest(number, identity))
            if self.kind.lies:
                stranger.peer = lying(stranger.peer, self.kind.lie(), partial(_attacks, stranger), stranger.held)
            self.strangers.append(stranger)

    def outside(self, step: int) -> list[Stranger]:
        return [stranger for stranger in self.strangers if stranger.is_outside(step)]

    def search(self, door: Door, step: int, others: int) -> Iterator[tuple[Stranger, Ticket]]:
        """Tickets to show: the best that each stranger outside has found so far. `others`: how many search besides this party."""
        outside = self.outside(step)
        for stranger, hashes in self._dealt(outside, others):
            found = stranger.tickets.search(door, hashes)
            if found is not None:
                yield stranger, found

    def _dealt(self, outside: Sequence[Stranger], others: int) -> Iterable[tuple[Stranger, int]]:
        """Hashes that are tried under each name: everyone has a machine of its own, but an attacker with many names has its share
        of all hashing, and tries one name after another."""
        if not isinstance(self.kind, Names):
            return [(stranger, HASHES) for stranger in outside]
        if not outside:
            return []
        share = self.kind.hash_share
        self._hashes += share / (1 - share) * HASHES * max(1, others)
        turns = int(self._hashes // _AT_ONCE)
        self._hashes -= turns * _AT_ONCE
        dealt = [(outside[(self._next + turn) % len(outside)], _AT_ONCE) for turn in range(turns)]
        self._next = (self._next + turns) % len(outside)
        return dealt

    def decide(self, state: State[Training]) -> None:
        """Decide what each of them does in the step that begins at this state."""
        if isinstance(self.kind, Names):
            self._share_machines(self.kind, state)
            return
        for stranger in self.strangers:
            since = stranger.since
            stranger.doing = self.kind.doing(None if since is None else state.step - since, state.step)

    def _share_machines(self, kind: Names, state: State[Training]) -> None:
        """Spend the machines of an attacker with many names on the gradients that its strategy wants to work."""
        mine = {stranger.me: stranger for stranger in self.strangers if stranger.state is not None}
        run = self.strangers[0].peer.run
        roles = draw_roles(run, state.roster, state.randomness, state.pending_audits)
        candidates = [candidate for candidate in state.roster.door.candidates if candidate.key in mine]
        due = Due(
            seats=len(mine.keys() & set(state.roster.members)),
            contributors=[peer for peer in roles.owners if peer in mine],
            begun=[PeerId(candidate.key) for candidate in candidates if candidate.worked],
            fresh=[PeerId(candidate.key) for candidate in candidates if not candidate.worked],
            spare=[PeerId(candidate.key) for candidate in candidates if candidate.worked and misses_few(candidate, 1)],
        )
        chosen = STRATEGIES[kind.strategy](due, kind.machines)
        for peer, stranger in mine.items():
            stranger.doing = _doing(peer, chosen, is_candidate=peer in state.roster.door.keys)


def make_parties(specs: Iterable[tuple[str, Strangers]], first: int, seed: int) -> list[Party]:
    parties: list[Party] = []
    for spec, kind in specs:
        parties.append(Party(spec, kind, first, seed))
        first += kind.count
    return parties


def _attacks(stranger: Stranger, _step: int) -> bool:
    return stranger.doing is Doing.ATTACK


def _doing(peer: PeerId, chosen: Committed, *, is_candidate: bool) -> Doing:
    if peer in chosen.faked:
        return Doing.FAKE
    return Doing.STAY_AWAY if is_candidate and peer not in chosen.worked else Doing.WORK
