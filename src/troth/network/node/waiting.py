"""A peer's answer to people who ask why nothing happens."""

from collections.abc import Callable, Collection, Iterable

from troth.crypto import PeerId
from troth.network.manifest.resilience import least_to_move
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.recovery.member import Member
from troth.protocol.wire.messages import Phase
from troth.training.work import Training


def waiting_for(
    member: Member[Training] | None, channel: BroadcastChannel | None, name_of: Callable[[PeerId], str]
) -> str | None:
    """The step and the peers that this peer waits for, in a line for people; None if it waits for nothing."""

    def names(peers: Iterable[PeerId]) -> str:
        return ", ".join(name_of(peer) for peer in sorted(peers))

    if member is not None and member.restart is not None and member.restart.waits:
        return _waiting_outside(member, names)
    where = channel.waits_for if channel is not None else None
    if where is None:
        return None
    slot, missing = where
    phase = Phase(slot.phase).name.lower()
    return f"step {slot.step}, {phase}: waits for {names(missing) or 'data on its way, or its own computations'}"


def _waiting_outside(member: Member[Training], names: Callable[[Iterable[PeerId]], str]) -> str:
    """A peer in no step: the others are in one, or the run has stopped."""
    restart, step, roster = member.restart, member.state.step, member.state.roster
    assert restart is not None
    if busy := restart.busy:
        # They may wait themselves, for this peer or for others.
        return f"before step {step}, in none: {names(busy)} {_are(busy)} in a step, and this peer waits until it ends"
    missing, members = restart.missing, len(roster.members)
    here = f"stopped: {members - len(missing)} of {members} members are here"
    if members - len(missing) >= restart.least:
        return f"{here}, enough to go on from step {step}; waits a while for {names(missing) or 'them to be ready'}"
    fewer = " (fewer, if you all agree on it: troth join --restart-with)" if restart.least > roster.quorum else ""
    return (
        f"{here}, and with {restart.least} the run goes on from step {step}{fewer}; nothing is lost. Missing: {names(missing)}; "
        "to come back, the same command as before is enough"
    )


def _are(peers: Collection[PeerId]) -> str:
    return "is" if len(peers) == 1 else "are"


def farewell(member: Member[Training] | None, seat: PeerId, validators: int, name_of: Callable[[PeerId], str]) -> str:
    """What becomes of the run without this peer."""
    if member is None:
        return "it had not begun to train"
    roster = member.state.roster
    others = [peer for peer in roster.members if name_of(peer) != name_of(seat)]
    needed = least_to_move(roster, validators)
    if len(others) >= max(needed, roster.quorum):
        return "the others go on"
    return (
        f"the {len(others)} others cannot train without it ({max(needed, roster.quorum)} are needed): the run waits until "
        "enough are back, and nothing is lost"
    )
