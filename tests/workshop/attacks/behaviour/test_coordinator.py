"""Colluders under one head: what it decides, that it acts, and that no promise is broken."""

from collections import Counter
from collections.abc import Mapping

import pytest

from troth.crypto import PeerId, Slot
from troth.protocol.core.roster import MOST_STRIKES
from troth.protocol.core.run import Parameters, Run
from troth.protocol.wire.messages import Accuse, Announced, ChargeKind, Commit, Envelope, GuiltySide, Message, Phase
from troth.workshop.attacks import heads as module
from troth.workshop.attacks.heads import COIN, COVERED, WITHHELD, WRONG_AGGREGATE, Coordinator
from troth.workshop.chaos.checkers import CHECKERS
from troth.workshop.chaos.judge import play
from troth.workshop.chaos.plan import Network, Plan
from troth.workshop.chaos.world import World

PEERS = tuple(PeerId(bytes([number]) * 32) for number in range(9))
LIARS = PEERS[:3]
RUN = Run(PEERS, b"test", Parameters(size=24, tau=0.1, byzantine=3), bytes(32))


def announced(messages: Mapping[PeerId, Message]) -> dict[PeerId, Announced]:
    return {peer: Announced(peer, message, Envelope(b"", bytes(64))) for peer, message in messages.items()}


def commits(contributors: tuple[PeerId, ...], validators: tuple[PeerId, ...] = ()) -> dict[PeerId, Announced]:
    roots = {**dict.fromkeys(contributors, bytes(32)), **dict.fromkeys(validators)}
    return announced({peer: Commit(root, bytes(32), bytes(32), length=1.0) for peer, root in roots.items()})


def head(*followers: PeerId, colluders: tuple[PeerId, ...] = LIARS) -> Coordinator:
    coordinator = Coordinator(RUN, frozenset(colluders))
    for peer in followers or colluders:
        coordinator.join(peer, lambda step: step >= 1)
    return coordinator


def takers(coordinator: Coordinator, step: int) -> dict[PeerId, set[str]]:
    """Moves of this step, by member."""
    moves = {
        peer: {m for m in (COVERED, WRONG_AGGREGATE, WITHHELD) if coordinator.takes(peer, m)(step)} for peer in PEERS
    }
    return {peer: taken for peer, taken in moves.items() if taken}


def accuse(coordinator: Coordinator, step: int, salt: int) -> list[PeerId]:
    """Coins are opened; who of us keeps his."""
    slot = Slot(RUN.id, step, Phase.ACCUSE)
    coins = {peer: bytes([salt, *peer[1:]]) for peer in PEERS}
    for peer in LIARS:
        coordinator.tell_coin(slot, peer, coins[peer])
    said = announced({peer: Accuse((), coins[peer]) for peer in PEERS if peer not in LIARS})
    return [peer for peer in LIARS if coordinator.keeps_coin(slot, peer, said)]


def test_one_takes_the_risk_while_others_look_away() -> None:
    coordinator = head()
    coordinator.hear_commits(0, commits(PEERS))
    assert takers(coordinator, 0) == {}, "nobody attacks yet"
    coordinator.hear_commits(1, commits(PEERS[:2] + PEERS[3:], PEERS[2:3]))
    assert takers(coordinator, 1) == {PEERS[1]: {COVERED}}, "a validator owns nothing"
    coordinator.hear_commits(1, commits(PEERS[:1] + PEERS[3:]))
    assert takers(coordinator, 1) == {PEERS[1]: {COVERED}}, "what was decided stays so"


def test_the_last_of_them_leaves_unbanned() -> None:
    coordinator = head()
    coordinator.hear_commits(1, commits(PEERS[2:]))
    assert takers(coordinator, 1) == {PEERS[2]: {WITHHELD}}


def test_nobody_left_is_nothing_done() -> None:
    coordinator = head()
    coordinator.hear_commits(1, commits(PEERS[3:], PEERS[:3]))
    assert takers(coordinator, 1) == {}
    assert not coordinator.lies(1)


def test_a_minority_accuses_nobody_falsely() -> None:
    """[T4] It could not win the vote; a majority, beyond any guarantee, could."""
    few, many = head(), head(colluders=PEERS[:5])
    for coordinator in (few, many):
        coordinator.hear_commits(1, commits(PEERS))
    assert not few.outvote(1)
    assert many.outvote(1)
    assert takers(many, 1) == {PEERS[4]: {WRONG_AGGREGATE}}


def test_coins_are_kept_only_where_it_helps_and_at_most_twice_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """[R6, N3] The third strike would expel. A liar that cannot be saved takes the next risk: it has nothing to lose."""
    monkeypatch.setattr("troth.protocol.core.roles.CYCLE_AUDITORS", 1)  # with five it hardly ever helps
    coordinator, kept, lost = head(), Counter[PeerId](), 0
    for step in range(1, 200):
        coordinator.hear_commits(step, commits(PEERS))
        (moves,) = takers(coordinator, step).values()
        assert moves <= {COVERED, WRONG_AGGREGATE}
        lost += moves == {WRONG_AGGREGATE}
        if moves == {COVERED}:
            keepers = accuse(coordinator, step, step)
            assert len(keepers) <= 1
            kept.update(keepers)
    assert sum(kept.values()) == coordinator.moves[COIN] > 0
    assert max(kept.values()) == MOST_STRIKES - 1
    assert lost > 0


class _Heads:
    """Keeps every head that a world makes."""

    def __init__(self) -> None:
        self.made: list[Coordinator] = []

    def __call__(self, run: Run, colluders: frozenset[PeerId]) -> Coordinator:
        self.made.append(Coordinator(run, colluders))
        return self.made[-1]

    @property
    def moves(self) -> Counter[str]:
        return sum((made.moves for made in self.made), Counter())


def world_of(seed: int) -> World:
    """Three of nine act as one."""
    plan = Plan(
        seed=seed,
        peers=9,
        steps=15,
        liars=dict.fromkeys(range(3), frozenset()),
        forge_from={},
        attacks=dict.fromkeys(range(3), "adapt"),
        intensity=dict.fromkeys(range(3), (0.0, 1)),
        crashes={},
        network=Network(latency=0.4),
    )
    return play(plan)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 2])
def test_three_of_nine_break_no_promise(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """[T4, T7, R6] They put wrong numbers into the model until they are audited, as every cover does, and no more than that."""
    heads = _Heads()
    monkeypatch.setattr(module, "Coordinator", heads)
    world = world_of(seed)
    promises = {name: check for name, check in CHECKERS.items() if name != "aggregates"}
    assert [f"{name}: {what}" for name, check in promises.items() for what in check(world)] == []
    assert len(world.records) == 15
    assert heads.moves[COVERED] > 0
    assert sum(heads.moves[move] for move in (COVERED, WRONG_AGGREGATE, WITHHELD)) <= 14, "one risk in a step"
    # A member that has an attempt repeated whose coins were open is struck as well, with or without a ban [N3].
    discarded = {
        (record.step, PeerId(j.target))
        for record in world.records
        for j in record.judgements
        if j.kind == ChargeKind.AGGREGATE and j.verdict in (GuiltySide.ACCUSED, GuiltySide.WITHHELD)
    }
    struck = {(record.step, PeerId(peer)) for record in world.records for peer in record.struck}
    assert discarded <= struck
    assert len(struck - discarded) == heads.moves[COIN]
    kinds = {judgement.kind for record in world.records for judgement in record.judgements}
    assert kinds <= {ChargeKind.AUDITED_REPORT, ChargeKind.COVER, ChargeKind.AGGREGATE}
