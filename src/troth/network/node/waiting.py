"""A peer's answer to people who ask why nothing happens, and its patience with others at the end."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from math import isfinite

from troth.crypto import PeerId
from troth.network.neighbour import Standing
from troth.network.node.founding import Presence, countdown
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.roster import least_to_move
from troth.protocol.recovery.member import Member
from troth.protocol.wire.messages import Phase
from troth.training.work import Training

_NOBODY = (
    "no member can be reached now: the run may be over. Then each of their folders has its model (model.safetensors, and "
    "model.json, by which 'troth verify' checks it): ask one of them for both"
)
_MOST_IN_VAIN = 3  # steps in a row
_FOR_STRANGERS = 3  # times delta: they ask every two of them how far the run is


def waiting_for(
    member: Member[Training] | None,
    channel: BroadcastChannel | None,
    seen: Presence,
    paused: str | None,  # why the last step did not move the model
    name_of: Callable[[PeerId], str],
) -> str | None:
    """The step and the peers that this peer waits for, in a line for people; None if it waits for nothing."""

    def names(peers: Iterable[PeerId]) -> str:
        return ", ".join(name_of(peer) for peer in sorted(peers))

    if member is not None and (way := _on_the_way_in(member) or _outside(member, seen.standings, names)) is not None:
        return way if seen.standings else f"{way}; but {_NOBODY}"
    if member is not None and channel is not None and channel.resting:
        away = names(gone.peer for gone in member.state.roster.away)
        return (
            paused
            or f"paused at step {member.state.step}: too few are left to train; waits until some of {away} are back"
        )
    where = channel.waits_for if channel is not None else None
    if where is None:
        return None
    slot, missing = where
    phase = Phase(slot.phase).name.lower()
    why = {
        peer: f" (no connection: {seen.troubles[peer]})" if peer in seen.troubles else "" for peer in sorted(missing)
    }
    awaited = ", ".join(name_of(peer) + trouble for peer, trouble in why.items())
    return f"step {slot.step}, {phase}: waits for {awaited or 'data on its way, or its own computations'}"


def _on_the_way_in(member: Member[Training]) -> str | None:
    """What a stranger waits for; None if this peer has a seat, or is in the steps of its probation."""
    state = member.state
    door = state.roster.door
    if member.has_seat or (member.peer.me in door.keys and member.lacks is None):
        return None
    if member.peer.me in door.keys:
        return f"has a place on probation; fetches the model, and catches up from step {state.step} on"
    if state.last is None:
        return "following the run: asks the members that answer for its records"
    free = door.slots - len(door.candidates)
    return f"knocking at step {state.step}: {free} of {door.slots} places are free, and go to the best tickets"


def _outside(
    member: Member[Training], standings: Mapping[PeerId, Standing], names: Callable[[Iterable[PeerId]], str]
) -> str | None:
    """A peer in no step: it lags behind, the others are in one, or the run has stopped."""
    restart, step, roster = member.restart, member.state.step, member.state.roster
    if restart is None:
        return None
    beside = {*roster.members} - restart.missing if restart.waits else {*restart.waiting_at(step)}
    # Those who went back a step say only now where they stand: whoever waits beside this peer is not ahead of it.
    ahead = {peer: at.step for peer, at in standings.items() if at.begun and at.step > step and peer not in beside}
    if ahead:
        at = f"this peer is at step {step}, the others at {max(ahead.values())}"
        return f"{at}; asks {names(ahead)} for what it missed"
    if not restart.waits:
        why = "has yet to fetch the model" if member.peer.me in roster.members else "is no member under this key"
        stopped = beside | {peer for peer, at in standings.items() if not at.begun and at.step == step}
        others = (
            f"{names(stopped)} {_are(stopped)} stopped there too"
            if stopped
            else "no other member has shown where it is"
        )
        return f"before step {step}, in none: this peer {why}, so it cannot restart the run; {others}"
    if busy := restart.busy:
        # They may wait themselves, for this peer or for others.
        return f"before step {step}, in none: {names(busy)} {_are(busy)} in a step, and this peer waits until it ends"
    missing, members = restart.missing, len(roster.members)
    least = max(restart.least, roster.quorum)  # without liars a restart would need fewer than a step does
    here = f"stopped: {members - len(missing)} of {members} members are here"
    if (left_s := restart.seconds_left) is not None:
        awaited = names(missing) or "them to be ready"
        return f"{here}, enough to go on from step {step}; waits for {awaited}, for {countdown(left_s)} at most"
    if members - len(missing) >= least:  # of those after a record that this peer signed, too few [B9]
        return f"{here}, and others may have gone on from a later record; waits for more of {names(missing)}"
    fewer = " (fewer, if you all agree on it: troth join --restart-with)" if least > roster.quorum else ""
    return (
        f"{here}, and with {least} the run goes on from step {step}{fewer}; nothing is lost. Missing: {names(missing)}; "
        "to come back, the same command as before is enough"
    )


def in_vain(steps: int, loss: float) -> str:
    """What gradients that count for nothing mean, for people; the same words however many more there are."""
    why = "it is zero, or not finite" if isfinite(loss) else f"the batch loss is {loss}"
    if steps < _MOST_IN_VAIN:
        return f"this peer's gradient counts as zero: {why}"
    return (
        f"this peer's gradients have counted as zero for {_MOST_IN_VAIN} steps or more: {why}. If the others say so too, "
        "the model is ruined: stop, and begin again from an earlier model or with a lower rate (troth new --from FOLDER --rate)"
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


async def wait_for_stragglers(
    member: Member[Training], channel: BroadcastChannel, presence: Callable[[], Presence], delta: float
) -> None:
    """Stay for peers that are still on their way: they need a majority of the others to tell them how the run ended."""
    wanted, last = set(member.state.roster.may_ask) - {member.peer.me}, member.state.step
    began = time.monotonic()
    while time.monotonic() < began + 10 * delta:
        behind = {peer for peer, at in presence().standings.items() if at.step < last}
        if not behind & wanted and (not behind or time.monotonic() > began + _FOR_STRANGERS * delta):
            return
        await member.linger(channel, delta / 4)
