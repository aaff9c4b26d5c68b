"""Strangers that ask more than a member answers: each has the same chance, in whatever order they ask (SPEC J3)."""

from hypothesis import given
from hypothesis import strategies as st

from troth.crypto import PeerId, derive
from troth.protocol.broadcast.serving import FewOfMany

MOST = 8
NAMES = [PeerId(bytes(derive(0, "few", number))) for number in range(64)]


@given(st.permutations(NAMES), st.integers(1, 3))
def test_who_is_answered_depends_neither_on_the_order_nor_on_how_often_one_asks(
    order: list[PeerId], times: int
) -> None:
    """[J3] And the few that are kept are the first in the draw, as if all had been kept and sorted."""
    few, plain = FewOfMany[int](MOST, b"secret"), FewOfMany[int](len(NAMES), b"secret")
    for number, name in enumerate(order * times):
        few.put(name, number)
        plain.put(name, number)
        assert len(few) <= MOST
    assert {name for name, _ in few.items()} == set(sorted((name for name, _ in plain.items()), key=few.rank)[:MOST])
    assert all(wanted >= (times - 1) * len(NAMES) for _, wanted in few.items()), "what it said last"


def test_one_that_asks_last_in_every_step_has_its_turn() -> None:
    """[J3] Among 63 names that ask before it, about once in eight steps; and two members draw differently."""
    members = [FewOfMany[int](MOST, secret) for secret in (b"one", b"other")]
    heard: list[list[int]] = [[], []]
    for step in range(160):
        for member, steps in zip(members, heard, strict=True):
            for name in NAMES:
                member.put(name, step)
            steps += [step] if NAMES[-1] in member else []
            member.clear()
    assert all(8 <= len(steps) <= 36 for steps in heard)
    assert heard[0] != heard[1]


def test_few_are_all_answered() -> None:
    few = FewOfMany[str](MOST)
    for name in NAMES[:MOST]:
        assert few.admits(name)
        few.put(name, "wanted")
    assert dict(few.items()) == dict.fromkeys(NAMES[:MOST], "wanted")
    few.clear()
    assert len(few) == 0
