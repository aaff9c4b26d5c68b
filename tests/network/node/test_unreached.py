"""Two members whose ports are closed to each other: both are told whose port to open."""

from dataclasses import replace

import msgspec

from tests.network.manifest.plans import KEYS, PLAN
from tests.protocol.scripted_world import plan, run_world
from troth.events.from_step import event_of_outcome
from troth.network.node.way_in import Unreached

ALICE, BOB, CAROL, DAVE = KEYS[:4]


def test_a_member_that_takes_part_without_a_connection_is_named_once() -> None:
    told = list[str]()
    unreached = Unreached(ALICE, "0.0.0.0:7001", told.append)
    troubles = {BOB: "cannot reach 10.0.0.2:7001: timed out", DAVE: "lost"}
    for _ in range(5):
        unreached.stepped((ALICE, BOB, CAROL), troubles, PLAN.name_of)
    assert told == [
        "no connection with bob, who takes part (cannot reach 10.0.0.2:7001: timed out), nor does bob reach this "
        "peer: the others pass on what the two say, which is slower. Open the port here (0.0.0.0:7001) to bob, or bob's to this "
        "peer; one of them is enough"
    ]
    unreached.stepped((ALICE, BOB), {}, PLAN.name_of)
    for _ in range(2):
        unreached.stepped((ALICE, BOB), {BOB: "lost"}, PLAN.name_of)
    assert len(told) == 2, "connected in between"


def test_every_member_names_a_pair_in_a_link_dispute() -> None:
    """[F2] Also those that are connected with both."""
    world = run_world(plan(peers=4, liars=(), steps=1)).world
    seen, names = world.witness[0], {peer: f"peer{number}" for peer, number in world.numbers.items()}
    pair = tuple(sorted(names)[:2])
    disputed = replace(seen, record=msgspec.structs.replace(seen.record, link_disputes=(pair,)))
    event = event_of_outcome(world.run, disputed, names.__getitem__, of=1)
    assert event.link_disputes == (tuple(names[peer] for peer in pair),)
