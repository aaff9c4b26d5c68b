"""All the ways in which tests reach into a channel: nowhere else do they know how it is built."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.broadcast.announcement import Announcement
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.observed import ObservedAnnouncement
from troth.protocol.core.channel import AttemptView
from troth.protocol.wire.frames import Frame, Packet, PartSent, PartShown

# An attempt


def enter_attempt(channel: BroadcastChannel, *given: Any, **named: Any) -> None:
    """Tell the channel about the attempt: its participants, and whatever else `AttemptView` holds."""
    channel._enter(AttemptView(*given, **named))


async def let_pass(channel: BroadcastChannel, seconds: float) -> None:
    """Let time pass on this channel."""
    await channel.wait(channel.now() + seconds, lambda: False)


def hear_packet(channel: BroadcastChannel, sender: PeerId, packet: Packet) -> None:
    """Hand a packet to the channel, as if its link had brought it."""
    channel.route(sender, packet)


# Announcements


def begin_announcement(channel: BroadcastChannel, slot: Slot) -> Announcement:
    running = channel._begin(slot, channel.position.view)
    assert isinstance(running, Announcement)
    return running


def run_announcement(channel: BroadcastChannel, slot: Slot, core: Announcement, members: Sequence[PeerId]) -> None:
    """Make this the announcement that the channel is in."""
    channel.position.slot, channel.position.members = slot, tuple(members)
    channel._announcer._running = core
    channel._take_up(slot)


def send_frames_of(channel: BroadcastChannel, slot: Slot, core: Announcement) -> None:
    """Send the frames that the announcement has ready."""
    channel._announcer._flush(slot, core)


def move_announcement(channel: BroadcastChannel, slot: Slot) -> None:
    """Let the announcement that the channel is in, if any, be the one of another slot."""
    channel.position.slot = slot if channel.position.slot is not None else None


def ended_announcement(channel: BroadcastChannel, observed: ObservedAnnouncement) -> None:
    """Make this the last announcement that the channel was in."""
    channel.pacing.ended(observed)


# Memory


def forget_step(channel: BroadcastChannel, step: int) -> None:
    """Let the channel forget the frames of this step."""
    channel._forget(step)


def frames_for_later(channel: BroadcastChannel) -> int:
    """Number of frames, parts and blobs that the channel keeps for later."""
    exchange = channel._exchange
    return channel._early_frames.frames + len(exchange.blobs) + len(exchange._parts)


def quota_bytes(channel: BroadcastChannel) -> int:
    """Bytes that the channel's quota counts."""
    return channel._quota.kept_bytes


def bytes_by_sender(channel: BroadcastChannel) -> list[int]:
    """Bytes that the channel's quota counts, of each sender."""
    return list(channel._quota._taken.values())


def has_blob(channel: BroadcastChannel, digest: Digest) -> bool:
    return digest in channel._exchange.blobs


def older_blobs(channel: BroadcastChannel) -> list[int]:
    """Number of blobs that are kept for observers, of each earlier step."""
    return [len(blobs) for blobs in channel._exchange.blobs._older]


def recount_bytes(channel: BroadcastChannel, size: Callable[[Slot, Frame], int], bookkeeping: int) -> int:
    """Count all that the channel keeps of others, looked up where it lies."""
    exchange = channel._exchange
    packets: Iterable[tuple[Slot, Frame]] = (
        *((slot, one.frame) for slot, waiting in channel._early_frames._packets.items() for _, one in waiting),
        *(
            (slot, PartSent(part, proven.path, proven.blob.view))
            for slot, parts in exchange._parts.items()
            for part, senders in parts.items()
            for proven in senders.values()
        ),
        *(
            (slot, PartShown(part, whose, proven.path, proven.blob.view))
            for slot, shown in exchange._shown.items()
            for (part, _), proven_parts in shown.items()
            for whose, proven in proven_parts.items()
        ),
    )
    blobs = (*exchange.blobs._here.values(), *(held for old in exchange.blobs._older for held in old.values()))
    return sum(size(*one) for one in packets) + sum(
        held.size + bookkeeping for held in blobs if held.sender is not None
    )
