"""Every lie at hand: what the table says in which situation, and that the head's word is done."""

from collections import Counter
from dataclasses import replace

import pytest

from troth.workshop.attacks.heads import BLOCK, COVER, LEAVE, LIES, OUTVOTE, REROLL, WRONG, Head, Outlook, best_lie
from troth.workshop.chaos.checkers import CHECKERS
from troth.workshop.chaos.judge import play
from troth.workshop.chaos.plan import Network, Plan

USUAL = Outlook(liars=7, members=16, contributing=6, contributors=15, gone=0, watched=0, freezes=False)


@pytest.mark.parametrize(
    ("change", "lie"),
    [
        ({}, REROLL),
        ({"liars": 2, "contributing": 2, "contributors": 6, "members": 7}, COVER),
        ({"members": 14, "gone": 2}, BLOCK),
        ({"members": 13}, OUTVOTE),
        ({"liars": 2, "contributing": 1, "watched": 2, "freezes": True}, LEAVE),
        ({"liars": 2, "contributing": 1, "watched": 2}, WRONG),
        ({"liars": 1, "contributing": 0}, None),
    ],
)
def test_the_best_lie_of_a_moment(change: dict[str, int], lie: str | None) -> None:
    outlook = replace(USUAL, **change)  # type: ignore[arg-type]
    assert best_lie(outlook) == lie


def test_a_lie_that_does_not_apply_is_never_taken() -> None:
    for liars in range(8):
        for gone in range(9):
            outlook = replace(USUAL, liars=liars, contributing=max(0, liars - 1), gone=gone, members=16 - gone)
            taken = best_lie(outlook)
            assert taken is None or next(lie for lie in LIES if lie.name == taken).applies(outlook)


@pytest.mark.long
def test_what_the_head_decides_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of twelve: they cover, and nobody honest is banned."""
    heads: list[Head] = []
    original = Head.__init__

    def made(self: Head, collusion: object) -> None:
        original(self, collusion)  # type: ignore[arg-type]
        heads.append(self)

    monkeypatch.setattr(Head, "__init__", made)
    liars = range(5)
    world = play(
        Plan(
            seed=1,
            peers=12,
            steps=5,
            liars=dict.fromkeys(liars, frozenset()),
            forge_from={},
            attacks=dict.fromkeys(liars, "strategist"),
            intensity=dict.fromkeys(liars, (0.0, 1)),
            crashes={},
            network=Network(latency=0.3),
        )
    )
    moves = sum((head.moves for head in heads), Counter[str]())
    assert moves[REROLL] >= 1
    assert CHECKERS["no honest ban"](world) == CHECKERS["safety"](world) == CHECKERS["agreement"](world) == []
    shifted = [r for r in world.witness if r.record.step == 1]
    assert shifted
    assert not shifted[0].record.judgements, "public numbers do not show it"
