"""Two members whose ports are closed to each other: both are told whose port to open."""

from tests.network.manifest.plans import KEYS, PLAN
from troth.network.node.unreached import Unreached

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
