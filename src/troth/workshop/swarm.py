"""Real processes over loopback: started, followed, stopped, and summed up."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from troth.events import kinds
from troth.events.file import EVENTS, EventFile
from troth.evidence.file_format import RunSummary
from troth.files import write_text
from troth.network.manifest.consent import agreed_here
from troth.network.manifest.manifest import Manifest
from troth.network.node.telling import Narrator, beginning
from troth.processes import started_safely
from troth.protocol.core.records import decode_record
from troth.training.work import MOST_NOT_FINITE
from troth.version import __version__
from troth.workshop.swarm_peers import (
    ChildEnded,
    ChildNote,
    ChildStepped,
    SwarmPlan,
    Trace,
    copy_companions,
    folder_of,
    live,
)

_STOPPING_S = 10.0
_DECODER: msgspec.msgpack.Decoder[Trace] = msgspec.msgpack.Decoder(Trace)


@dataclass
class Seen:
    """Everything that the processes have reported so far."""

    events: dict[int, dict[int, kinds.Stepped]] = field(default_factory=dict)  # by peer and step
    records: dict[int, dict[int, bytes]] = field(default_factory=dict)
    ended: dict[int, ChildEnded] = field(default_factory=dict)
    notes: list[ChildNote] = field(default_factory=list)

    def take(self, trace: Trace) -> None:
        match trace:
            case ChildStepped():
                # Not the count of updates: pauses and the closing step have none.
                step = decode_record(trace.record).step
                self.events.setdefault(trace.peer, {})[step] = trace.event
                self.records.setdefault(trace.peer, {})[step] = trace.record
            case ChildEnded():
                self.ended[trace.peer] = trace
            case ChildNote():
                self.notes.append(trace)


class SwarmStream:
    """Writes events.jsonl into the swarm's folder: what one honest peer tells, and another where that one ended. In a rehearsal
    everybody may know who lies."""

    def __init__(self, plan: SwarmPlan, manifest: Manifest, out: Path) -> None:
        honest = self._tellers = plan.honest  # the first of them tells
        self._honest = frozenset(honest)
        self._last = -1  # step told
        self._file = EventFile(out / EVENTS, fresh=True)
        self._notes = Narrator(lambda text: self._file.add(kinds.Noted(text=text, at=time.time())))
        liars = [peer for peer, number in plan.numbers().items() if number in plan.liars]
        self._file.add(
            msgspec.structs.replace(
                beginning(manifest, "swarm", liars),
                me=f"peer{honest[0]}",
                manifest=str(out / "run.toml"),
                evidence=str(folder_of(out, honest[0]) / "evidence"),
                at=time.time(),
            )
        )

    def take(self, trace: Trace) -> None:
        match trace:
            case ChildStepped(peer, event) if self._tellers[:1] == [peer] and event.step > self._last:
                self._last = event.step
                self._file.add(event)
            case ChildNote(peer, text) if peer in self._honest:
                self._notes.note(f"peer{peer}: {text}")
            case ChildEnded(peer, how) if how != "done" and peer in self._honest:
                self._tellers = [other for other in self._tellers if other != peer]
                self._file.add(kinds.Noted(text=f"peer{peer} ended: {how}", at=time.time()))

    def end(self, *, stopped: bool) -> None:
        self._file.add(kinds.Ended(how="stopped" if stopped else "over", at=time.time()))
        self._file.close()


class Swarm:
    """The processes of a plan. Use as a context manager: whatever happens, no process is left behind."""

    def __init__(
        self, plan: SwarmPlan, manifest: Manifest, out: Path, *, evaluate_every: int = 10, threads: int = 1
    ) -> None:
        self.plan = plan
        self.manifest = manifest
        self.out = out
        self.seen = Seen()
        self.honest = plan.honest
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(["troth.workshop.swarm_ready"])
        self._processes: dict[int, BaseProcess] = {}
        self._pipes: dict[Connection, int] = {}
        self._raw = msgspec.json.encode(plan), manifest.to_toml().encode()
        self._settings = evaluate_every, threads

    def __enter__(self) -> Self:
        self.out.mkdir(parents=True, exist_ok=True)
        write_text(self.out / "run.toml", self.manifest.to_toml())
        copy_companions(self.manifest, self.out)
        self._stream = SwarmStream(self.plan, self.manifest, self.out)
        try:
            for number in range(self.plan.peers):
                self.start(number)
        except BaseException:
            self._stream.end(stopped=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.terminate()
        until = time.monotonic() + _STOPPING_S
        for process in self._processes.values():
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._stream.end(stopped=kind is not None)

    # Processes

    def start(self, number: int) -> None:
        """Start a peer, also again after it was killed."""
        with started_safely():  # the first one starts the fork server, which imports for seconds
            forkserver.ensure_running()
        mine, theirs = self._context.Pipe(duplex=False)
        arguments = (
            *self._raw,
            str(self.manifest.folder),
            str(self.out),
            number,
            theirs,
            *self._settings,
            agreed_here(),
        )
        process = self._context.Process(target=live, args=arguments, name=f"peer{number}", daemon=True)
        process.start()
        theirs.close()
        self._processes[number], self._pipes[mine] = process, number

    def kill(self, number: int) -> None:
        """Kill a peer as `kill -9` does."""
        self._processes[number].kill()
        self._processes[number].join()

    def pid(self, number: int) -> int | None:
        return self._processes[number].pid

    # Their reports

    def follow(
        self,
        on_trace: Callable[[Trace], None] = lambda _: None,
        *,
        until: Callable[[Seen], bool] | None = None,
        most_s: float = float("inf"),
    ) -> bool:
        """Read reports until that holds, or until every honest peer has ended; False if it takes too long.

        Each peer reports over a pipe of its own: what one has told of a step, another, or the `witness`, may tell later."""
        done, deadline = until or self._honest_ended, time.monotonic() + most_s
        while not done(self.seen) and not self._honest_ended(self.seen):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for pipe in wait(list(self._pipes), timeout=min(left, 1.0)):
                assert isinstance(pipe, Connection)
                self._read(pipe, on_trace)
        return True

    def _read(self, pipe: Connection, on_trace: Callable[[Trace], None]) -> None:
        try:
            trace = _DECODER.decode(pipe.recv_bytes())
        except (EOFError, OSError):
            number = self._pipes.pop(pipe)
            pipe.close()
            if number not in self._pipes.values() and number not in self.seen.ended:
                self.seen.ended[number] = ChildEnded(number, "its process ended")
            return
        self.seen.take(trace)
        self._stream.take(trace)
        on_trace(trace)

    def _honest_ended(self, seen: Seen) -> bool:
        return all(number in seen.ended for number in self.honest)

    # Results

    @property
    def agreement(self) -> bool:
        """Whether every honest peer has the same record of every step that it saw, and the same model at the end."""
        steps: dict[int, set[bytes]] = {}
        for number in self.honest:
            for step, record in self.seen.records.get(number, {}).items():
                steps.setdefault(step, set()).add(record)
        models = {
            self.seen.ended[n].state for n in self.honest if n in self.seen.ended and self.seen.ended[n].how == "done"
        }
        return all(len(records) == 1 for records in steps.values()) and len(models) <= 1

    @property
    def witness(self) -> int:
        """The honest peer that saw the most steps."""
        return max(self.honest, key=lambda number: (len(self.seen.events.get(number, {})), -number))

    def summary(self, before: dict[str, float]) -> RunSummary:
        """A summary with the same keys as a simulation's; `before` are the metrics of the first model."""
        by_step = dict(sorted(self.seen.events.get(self.witness, {}).items()))
        events = list(by_step.values())
        measured = {
            event.step + 1: event.metrics for event in events if event.metrics
        }  # of the final model, in the end
        curve = [{"step": 0, **before}, *({"step": updates, **metrics} for updates, metrics in measured.items())]
        return RunSummary(
            version=__version__,
            peers=self.plan.peers,
            byzantine=self.plan.liars,
            steps=events[-1].step + 1 if events else 0,
            attack=" + ".join(self.plan.attacks) if self.plan.byzantine else None,
            defence="troth",
            metrics={name: value for name, value in curve[-1].items() if name != "step"},
            curve=curve,
            details=self._details(by_step),
            config=self.config,
        )

    @property
    def config(self) -> dict[str, Any]:
        """Everything that determines the result, accidents aside."""
        return {
            "swarm": True,
            "run": self.manifest.run.id.hex(),
            "task": self.manifest.task,
            "steps": self.manifest.steps,
            "attack": " + ".join(self.plan.attacks),
            "beyond_guarantee": self.manifest.parameters.beyond_guarantee,
            **self.plan.as_dict(),
        }

    def _details(self, by_step: dict[int, kinds.Stepped]) -> dict[str, Any]:
        events = list(by_step.values())
        numbers = {f"peer{number}": number for number in range(self.plan.peers)}
        banned = {
            ban.peer: (step, ban.reason)
            for step, event in reversed(by_step.items())
            for ban in event.banned
            if ban.peer in numbers  # and no stranger, who came in from another terminal
        }
        steps, attacked_steps = max(1, len(events)), sum(map(self.plan.coalition().active, by_step))
        stopped = [f"peer{n}: {self.seen.ended[n].how}" for n in self.honest if n in self.seen.ended]
        records = self.seen.records.get(self.witness, {})
        return {
            "parameters": self.manifest.parameters.size,
            "gradients": "one process for each peer",
            "attacked_steps": attacked_steps,
            "diverged_at": self._diverged_at(list(by_step)),
            "attackers_active": self.plan.liars if attacked_steps else [],
            "banned": [
                {"peer": numbers[name], "step": step, "reason": reason, "evidence": f"ban-step{step}-{name}.json"}
                for name, (step, reason) in sorted(banned.items(), key=lambda item: item[1])
            ],
            "honest_banned": len({numbers[name] for name in banned} - set(self.plan.liars)),
            "absent": [numbers[name] for event in events for name in event.left if name in numbers],
            "stalled": "; ".join(how for how in stopped if not how.endswith(": done")) or None,
            "agreement": self.agreement,
            "announced_bytes_per_step": events[-1].control_bytes // steps if events else 0,
            "bulk_bytes_per_step": events[-1].bulk_bytes // steps if events else 0,
            "audits": sum(event.own_audits for seen in self.seen.events.values() for event in seen.values()),
            "tolerant_audits": 0,
            "trials": sum(len(event.banned) for event in events),
            "attempts": sum(event.attempts for event in events),
            "beyond_guarantee": self.plan.byzantine > self.manifest.parameters.byzantine,
            "final_record": records[max(records)].hex() if records else None,
        }

    def _diverged_at(self, steps: Sequence[int]) -> int | None:
        """Step since which no honest contributor had a loss that is finite, for some steps to the end."""
        since = None
        for step in steps:
            seen = ((f"peer{n}", self.seen.events.get(n, {}).get(step)) for n in self.honest)
            contributed = [
                event.loss
                for name, event in seen
                if event is not None and not event.observed and name not in (*event.validators, *event.silent)
            ]
            if any(loss is not None for loss in contributed):
                since = None
            elif contributed and since is None:
                since = step
        return since if since is not None and steps[-1] - since + 1 >= MOST_NOT_FINITE else None

    def evidence_folder(self) -> Path:
        return folder_of(self.out, self.witness) / "evidence"

    def model_file(self) -> Path | None:
        """The model at the end, as an honest peer wrote it."""
        file = folder_of(self.out, self.witness) / "model.safetensors"
        return file if file.exists() else None
