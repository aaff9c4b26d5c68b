"""A peer's answer to people who ask why nothing happens."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from troth.crypto import PeerId
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.recovery.member import Member
from troth.protocol.wire.messages import Phase
from troth.training.work import Training


@dataclass(frozen=True)
class Waiting:
    """A line for people."""

    text: str
    for_restart: bool  # people may agree on fewer members (`restart_with`)


def waiting_for(
    member: Member[Training] | None, channel: BroadcastChannel | None, name_of: Callable[[PeerId], str]
) -> Waiting | None:
    """The step and the peers that this peer waits for; None if it waits for nothing."""

    def names(peers: Iterable[PeerId]) -> str:
        return ", ".join(name_of(peer) for peer in sorted(peers))

    if member is not None and member.restart is not None and member.restart.waits:
        missing, members = member.restart.missing, len(member.state.roster.members)
        text = (
            f"stopped: {members - len(missing)} of {members} members are here, and with {member.restart.least} the run goes "
            f"on from step {member.state.step}; waits for {names(missing) or 'them to be ready'}"
        )
        return Waiting(text, for_restart=True)
    where = channel.waits_for if channel is not None else None
    if where is None:
        return None
    slot, missing = where
    phase = Phase(slot.phase).name.lower()
    text = f"step {slot.step}, {phase}: waits for {names(missing) or 'blobs or its own computations'}"
    return Waiting(text, for_restart=False)
