"""Strangers as they are asked for: what is understood, what is refused, and what each kind does."""

from typing import Any

import pytest

from troth.errors import OperatorError
from troth.workshop.simulation import Scenario
from troth.workshop.simulation.stranger_specs import (
    STRANGERS,
    STRATEGIES,
    Doing,
    Honest,
    Leaves,
    Names,
    Strangers,
    Turns,
    make_strangers,
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strangers": "honest", "probation": 0}, "`strangers` need an open door: set `probation`"),
        ({"probation": 1}, "`probation` must be 0 \\(the door is closed\\), or 2 to 65536, got 1"),
        ({"probation": -8}, "`probation` must be 0 .*, got -8"),
        ({"probation": 1 << 17}, "`probation` must be 0 .*, got 131072"),
        ({"slots": 0}, "`slots` must be 1 to 16, got 0"),
        ({"slots": 17}, "`slots` must be 1 to 16, got 17"),
        ({"deviation": 0.01}, "`probation` needs a run without `deviation`"),
        ({"defence": "mean"}, "`probation` is the protocol's: use `defence` troth"),
        ({"strangers": "honset"}, "unknown kind of strangers 'honset': did you mean honest"),
        ({"strangers": "noise:when=3"}, "'noise:when=3' has no option 'when' \\(its options: at, count, every\\)"),
        ({"strangers": "noise:at=-1"}, "'noise:at=-1': at must not be negative, got -1"),
        ({"strangers": "noise:count=0"}, "'noise:count=0': count must be 1 to 4096, got 0"),
        ({"strangers": "honest:misses=-1"}, "'honest:misses=-1': misses must not be negative, got -1"),
        ({"strangers": "noise:count=4096 + zeros"}, "`strangers` must be at most 4096, got 4097"),
        (
            {"strangers": "noise:at=20"},
            "`strangers` noise:at=20: somebody knocks at step 20, and the run ends after 20",
        ),
        ({"strangers": "old:count=3,every=10"}, "`strangers` old:count=3,every=10: somebody knocks at step 20"),
        ({"strangers": "turns:attack=alee"}, "unknown attack 'alee': did you mean alie"),
        ({"strangers": "turns:attack=label-flip"}, "label-flip needs a task with labels"),
        ({"strangers": "turns:after=-1"}, "'turns:after=-1': after must not be negative, got -1"),
        ({"strangers": "leaves:stay=0"}, "'leaves:stay=0': stay must be at least 1 step, got 0"),
        ({"strangers": "names:machines=-1"}, "'names:machines=-1': machines must not be negative"),
        ({"strangers": "names:hash_share=1"}, "'names:hash_share=1': hash_share must be above 0 and below 1, got 1"),
        ({"strangers": "names:strategy=work"}, "unknown strategy 'work': did you mean works"),
    ],
    ids=str,
)
def test_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=f"^{message}") as caught:
        Scenario(**{"task": "quadratic", "peers": 5, "steps": 20, "probation": 8, **options})
    assert "\n" not in str(caught.value)


def test_several_kinds_in_one_string_or_one_by_one() -> None:
    specs = "honest:at=3 + turns:attack=sign-flip:scale=10 + names:count=7,machines=2"
    kinds = [kind for _, kind in make_strangers(specs)]
    assert kinds == [Honest(at=3), Turns(attack="sign-flip:scale=10"), Names(count=7, machines=2)]
    listed = Scenario(steps=20, probation=8, strangers=specs.split(" + "))
    assert listed == Scenario(steps=20, probation=8, strangers=specs)
    assert listed.at_once == 16 + 4
    assert [Honest(at=3, count=3, every=5).knocks(k) for k in range(3)] == [3, 8, 13]


def test_every_kind_says_what_it_does() -> None:
    """On probation, and in the first steps as a member; names are told by their strategy."""
    work, fake, attack, away = Doing.WORK, Doing.FAKE, Doing.ATTACK, Doing.STAY_AWAY
    expected: dict[Strangers, list[Doing]] = {
        Honest(): [work, work, work, work],
        Honest(misses=4): [away, work, work, work],
        Honest(misses=5): [work, work, work, work],
        Turns(after=1): [work, work, attack, attack],
        Leaves(stay=2): [work, work, attack, away],
        **{STRANGERS[name](): [fake] * 4 for name in ("zeros", "noise", "old", "copies")},
    }
    for kind, does in expected.items():
        assert [kind.doing(member_for, 8) for member_for in (None, 0, 1, 2)] == does
    assert {type(kind) for kind in expected} | {Names} == set(STRANGERS.values())
    assert set(STRATEGIES) == {"works", "fakes", "turns", "stretches"}
