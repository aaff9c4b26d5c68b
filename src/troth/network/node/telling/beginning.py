"""The first event of a run that has a manifest, whoever tells it."""

import re
from collections.abc import Iterable

import msgspec

from troth.crypto import PeerId
from troth.events.from_step import began_by, known_peers
from troth.events.kinds import Began, Source
from troth.network.manifest.manifest import Manifest


def beginning(manifest: Manifest, source: Source, liars: Iterable[PeerId] = ()) -> Began:
    """What a watcher must know before the first step. `liars`: where that is known."""
    founders = sorted(manifest.founders, key=lambda founder: _counted(founder.name))
    peers = known_peers((founder.key for founder in founders), manifest.name_of, liars)
    return msgspec.structs.replace(
        began_by(manifest.run, source, manifest.steps, peers),
        name=manifest.name,
        task=manifest.task,
        least_delta_s=manifest.timeouts.delta,
    )


def _counted(name: str) -> list[str | int]:
    """For an order as people count: peer2 before peer10."""
    return [int(part) if part.isdecimal() else part for part in re.split("([0-9]+)", name)]
