"""Digests of what seeds mean: plans, worlds, runs and the draws of other tests. `python -m tests.workshop.chaos.digests`.

They have to be the same in every process, whatever order its sets have.
"""

import hashlib
import json
from dataclasses import replace
from itertools import count
from unittest.mock import patch

from tests.protocol.broadcast.announcement.link_dispute_world import LinkDisputeWorld
from tests.protocol.broadcast.announcement.world import AnnouncementWorld
from tests.protocol.small_runs import SMALL, finished
from tests.protocol.step.test_deliveries import drawn_step
from troth.crypto import PeerId
from troth.protocol.wire.frames import Packet, encode_packet
from troth.workshop.chaos.draws import DRAWS
from troth.workshop.chaos.judge import play
from troth.workshop.chaos.plan import Plan
from troth.workshop.chaos.plan_file import plan_bytes

_WORLDS = (("classic", 29, 4), ("wide", 51, 4), ("door", 29, 10))  # with liars and crashes; draw, seed and steps
_MOST_PEERS = 7


def digests() -> dict[str, str]:
    found = {f"plans, {name}": _digest([plan_bytes(draw(seed)) for seed in range(100)]) for name, draw in DRAWS.items()}
    for name, seed, steps in _WORLDS:
        found[f"world, {name}"] = _trace(replace(DRAWS[name](seed, most_peers=_MOST_PEERS), steps=steps))
    found["run"] = _digest(finished(replace(SMALL, steps=5, evaluate_every=5)).trace)
    for kind in (AnnouncementWorld, LinkDisputeWorld):
        worlds = [kind(seed, departures=departures).run() for seed in range(10) for departures in (False, True)]
        found[kind.__name__] = _digest([[member.sent for member in world.honest] for world in worlds])
    found["steps"] = _digest([drawn_step(seed).draw.getstate() for seed in range(40)])
    return found


def _trace(plan: Plan) -> str:
    """Of every packet of a world, with its time. A stranger asks with numbers that nobody could know: these are counted."""
    seen, numbers = hashlib.sha256(), count()

    def note(now: float, sender: PeerId, to: PeerId, packet: Packet, delays: object) -> None:
        seen.update(repr((now, sender, to, delays)).encode() + encode_packet(packet))

    with patch("secrets.token_bytes", lambda size: next(numbers).to_bytes(size)):
        play(plan, note)
    return seen.hexdigest()


def _digest(drawn: object) -> str:
    return hashlib.sha256(repr(drawn).encode()).hexdigest()


if __name__ == "__main__":
    print(json.dumps(digests()))
