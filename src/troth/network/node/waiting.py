"""A peer's answer to people who ask why nothing happens."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from troth.crypto import PeerId
from troth.network.mesh.session import Standing
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
    member: Member[Training] | None,
    channel: BroadcastChannel | None,
    standings: Mapping[PeerId, Standing],
    name_of: Callable[[PeerId], str],
) -> Waiting | None:
    """The step and the peers that this peer waits for; None if it waits for nothing."""

    def names(peers: Iterable[PeerId]) -> str:
        return ", ".join(name_of(peer) for peer in sorted(peers))

    if member is not None and member.restart is not None and member.restart.waits:
        ahead = {
            peer: where.step for peer, where in standings.items() if where.begun and where.step > member.state.step
        }
        if ahead:
            text = (
                f"this peer is at step {member.state.step}, the others at {max(ahead.values())}; "
                f"asks {names(ahead)} for what it missed"
            )
            return Waiting(text, for_restart=False)
        missing, members = member.restart.missing, len(member.state.roster.members)
        text = (
            f"stopped: {members - len(missing)} of {members} members are here, and with {member.restart.least} the run goes "
            f"on from step {member.state.step}; waits for {names(missing) or 'them to be ready'}"
        )
        return Waiting(text, for_restart=True)
    if member is not None and channel is not None and channel.resting:
        away = names(gone.peer for gone in member.state.roster.away)
        text = f"paused at step {member.state.step}: too few are left to train; waits until some of {away} are back"
        return Waiting(text, for_restart=False)
    where = channel.waits_for if channel is not None else None
    if where is None:
        return None
    slot, missing = where
    phase = Phase(slot.phase).name.lower()
    text = f"step {slot.step}, {phase}: waits for {names(missing) or 'blobs or its own computations'}"
    return Waiting(text, for_restart=False)
