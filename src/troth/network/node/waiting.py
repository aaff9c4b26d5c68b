"""A peer's answer to people who ask why nothing happens."""

from collections.abc import Callable, Iterable

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
        if busy := member.restart.busy:
            # They may wait themselves, for this peer or for others; the run has not stopped.
            return f"coming back from step {member.state.step}: waits until {names(busy)} end the step that they are in"
        missing, members = member.restart.missing, len(member.state.roster.members)
        fewer = " (or with fewer, if you all agree on it: troth join --restart-with)"
        return (
            f"stopped: {members - len(missing)} of {members} members are here, and with {member.restart.least} the run goes on "
            f"from step {member.state.step}{fewer if member.restart.least > member.state.roster.quorum else ''}; nothing is "
            f"lost. Waits for {names(missing) or 'them to be ready'}: they come back with the same command as before"
        )
    where = channel.waits_for if channel is not None else None
    if where is None:
        return None
    slot, missing = where
    phase = Phase(slot.phase).name.lower()
    return f"step {slot.step}, {phase}: waits for {names(missing) or 'blobs or its own computations'}"


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
