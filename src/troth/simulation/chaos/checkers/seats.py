"""Seats: how many liars are reckoned with, and how many are a quorum, as people come in, go and are banned (SPEC G1, J7)."""

from troth.crypto import PeerId
from troth.protocol.core.records import Judgement
from troth.protocol.wire.messages import Kind, Verdict
from troth.simulation.chaos.world import World


def seats(world: World) -> list[str]:
    """`b` is the founders' share of all seats, only bans of founders that nobody can refute lower `L`, a quorum is more than
    half, and than `L`; and a record after which more members are banned than there may be liars says so, and is the last.

    Counted from the records: seats of those who came in last until they are banned for good reason or expelled (worlds are too
    short for the rest), whatever keys they come back under.
    """
    broken: list[str] = []
    founders = len(world.run.founders)
    promised = min(world.plan.promised, (founders - 1) // 2)
    first = {bytes(key): bytes(key) for key in world.run.founders}  # the first key of every member's seat
    entered, banned, sure, expelled = set[bytes](), set[bytes](), set[bytes](), set[bytes]()
    for outcome in world.witness:
        record, roster = outcome.record, outcome.state.roster
        first |= {one.key: first.get(one.member, one.member) for one in record.returned}
        entered |= {one.key for one in record.admitted}
        new = {first.get(key, key) for key in record.banned} - banned
        sure |= new & {first.get(j.target, j.target) for j in record.judgements if _nobody_can_refute(j)}
        banned |= new
        expelled |= {first.get(key, key) for key in record.expelled}
        count = founders + len(entered - sure - expelled)
        byzantine = promised * count // founders
        liars = max(0, byzantine - len(sure & set(world.run.founders)))
        quorum = max(len(roster.members) // 2 + 1, liars + 1)
        held = (roster.seats, roster.byzantine, roster.liars, roster.quorum)
        if held != (count, byzantine, liars, quorum):
            wanted = f"{count}, {byzantine}, {liars} and {quorum}"
            broken.append(f"step {record.step}: seats, b, L and quorum should be {wanted}, and are {held}")
        too_many = len(banned & (entered | first.keys())) > promised * (founders + len(entered - expelled)) // founders
        if record.alarm != too_many or (record.alarm and record is not world.records[-1]):
            broken.append(f"step {record.step}: {len(banned)} bans, and the alarm is {record.alarm}")
        late = {PeerId(key) for key in banned} & set(roster.members)
        broken += [f"step {record.step}: {world.name(key)} was banned, and has a seat" for key in sorted(late)]
    return broken


def _nobody_can_refute(judgement: Judgement) -> bool:
    """A gradient compared bit by bit, or two signatures for one slot."""
    return judgement.verdict == Verdict.ACCUSED and judgement.kind in (Kind.GRADIENT, Kind.EQUIVOCATION)
