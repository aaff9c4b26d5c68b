"""Channel of liars that speak last."""

from collections.abc import Callable

from troth.crypto import Slot
from troth.protocol.broadcast.announcement import Announcement
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.channel import AttemptView, Said
from troth.protocol.wire.messages import Malformed, Message
from troth.protocol.wire.phases import seal


class LateChannel(BroadcastChannel):
    """Decides what to say only when it has heard the others."""

    async def announce_last(self, slot: Slot, choose: Callable[[Said], Message | None], view: AttemptView) -> Said:
        running = self._begin(slot, view)
        if not isinstance(running, Announcement):
            return await self._finish(slot, running)  # an observer says nothing
        now, delta = self.listener.now(), self.pacing.timeouts.delta
        due = (running.deadline or now) - 2.1 * delta  # any later, it would come too late for some
        await self.listener.wait(due, lambda: len(running.heard) >= len(self.position.members) - 1)
        opened = {peer: self._tools.open(slot, peer, envelope) for peer, envelope in running.heard.items()}
        message = choose({peer: said for peer, said in opened.items() if not isinstance(said, Malformed)})
        if message is not None:
            running.say(seal(self._identity, slot, message), self.listener.now())
        return await self._finish(slot, running)
