"""A swarm's stream of events: what one honest peer tells, and another where that one ended."""

import time
from pathlib import Path

import msgspec

from troth.events import kinds
from troth.events.file import EVENTS, EventFile
from troth.network.manifest.manifest import Manifest
from troth.network.node.telling.beginning import beginning
from troth.network.node.telling.narrator import Narrator
from troth.swarm.child import Ended, Note, Stepped, Trace
from troth.swarm.plan import SwarmPlan, folder_of


class SwarmStream:
    """Writes events.jsonl into the swarm's folder. In a rehearsal everybody may know who lies."""

    def __init__(self, plan: SwarmPlan, manifest: Manifest, out: Path) -> None:
        honest = [number for number in range(plan.peers) if number not in plan.liars]
        self._tellers = honest  # the first of them tells
        self._honest = frozenset(honest)
        self._last = -1  # step told
        self._file = EventFile(out / EVENTS, fresh=True)
        self._notes = Narrator(lambda text: self._file.add(kinds.Noted(text=text, at=time.time())))
        liars = [peer for peer, number in plan.numbers().items() if number in plan.liars]
        self._file.add(
            msgspec.structs.replace(
                beginning(manifest, "swarm", liars),
                me=f"peer{honest[0]}" if honest else "",
                manifest=str(out / "run.toml"),
                evidence=str(folder_of(out, honest[0]) / "evidence") if honest else "",
                at=time.time(),
            )
        )

    def take(self, trace: Trace) -> None:
        match trace:
            case Stepped(peer, event) if self._tellers[:1] == [peer] and event.step > self._last:
                self._last = event.step
                self._file.add(event)
            case Note(peer, text) if peer in self._honest:
                self._notes.note(f"peer{peer}: {text}")
            case Ended(peer, how) if how != "done" and peer in self._honest:
                self._tellers = [other for other in self._tellers if other != peer]
                self._file.add(kinds.Noted(text=f"peer{peer} ended: {how}", at=time.time()))

    def end(self, *, stopped: bool) -> None:
        self._file.add(kinds.Ended(how="stopped" if stopped else "over", at=time.time()))
        self._file.close()
