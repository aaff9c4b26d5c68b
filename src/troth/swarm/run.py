"""Real processes over loopback: started, followed, stopped; and what they agreed on."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

import troth
from troth.evidence import RunSummary
from troth.files import write_text
from troth.network.manifest.manifest import Manifest
from troth.network.node.events import StepEvent
from troth.protocol.core.records import decode_record
from troth.swarm.child import Ended, Note, Stepped, Trace, live
from troth.swarm.plan import SwarmPlan, folder_of

_STOPPING_S = 10.0
_DECODER: msgspec.msgpack.Decoder[Trace] = msgspec.msgpack.Decoder(Trace)


@dataclass
class Seen:
    """What the processes have told so far."""

    event: dict[int, dict[int, StepEvent]] = field(default_factory=dict)  # by peer and step
    records: dict[int, dict[int, bytes]] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def take(self, told: Trace) -> None:
        match told:
            case Stepped():
                # Not the count of updates: pauses and the closing step have none.
                step = decode_record(told.record).step
                self.event.setdefault(told.peer, {})[step] = told.event
                self.records.setdefault(told.peer, {})[step] = told.record
            case Ended():
                self.ended[told.peer] = told
            case Note():
                self.notes.append(told)


class Swarm:
    """Use as a context manager: whatever happens, no process is left behind."""

    def __init__(self, plan: SwarmPlan, manifest: Manifest, out: Path) -> None:
        self.plan = plan
        self.manifest = manifest
        self.out = out
        self.seen = Seen()
        self.honest = [number for number in range(plan.peers) if number not in plan.liars]
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(["troth.swarm.ready"])
        self._processes: dict[int, BaseProcess] = {}
        self._pipes: dict[Connection, int] = {}
        self._raw = msgspec.json.encode(plan), manifest.to_toml().encode()

    def __enter__(self) -> Self:
        self.out.mkdir(parents=True, exist_ok=True)
        write_text(self.out / "run.toml", self.manifest.to_toml())
        for number in range(self.plan.peers):
            self.start(number)
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

    # Processes

    def start(self, number: int) -> None:
        """Also again, after it was killed."""
        mine, theirs = self._context.Pipe(duplex=False)
        arguments = (*self._raw, str(self.manifest.folder), str(self.out), number, theirs)
        process = self._context.Process(target=live, args=arguments, name=f"peer{number}", daemon=True)
        process.start()
        theirs.close()
        self._processes[number], self._pipes[mine] = process, number

    def kill(self, number: int) -> None:
        """As `kill -9` does."""
        self._processes[number].kill()
        self._processes[number].join()

    def pid(self, number: int) -> int | None:
        return self._processes[number].pid

    # What they say

    def follow(
        self,
        told: Callable[[Trace], None] = lambda _: None,
        *,
        until: Callable[[Seen], bool] | None = None,
        most_s: float = float("inf"),
    ) -> bool:
        """Until that holds, or every honest peer has ended; False if it took too long."""
        done, deadline = until or self._honest_ended, time.monotonic() + most_s
        while not done(self.seen) and not self._honest_ended(self.seen):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for pipe in wait(list(self._pipes), timeout=min(left, 1.0)):
                assert isinstance(pipe, Connection)
                self._read(pipe, told)
        return True

    def _read(self, pipe: Connection, told: Callable[[Trace], None]) -> None:
        try:
            heard = _DECODER.decode(pipe.recv_bytes())
        except (EOFError, OSError):
            number = self._pipes.pop(pipe)
            pipe.close()
            if number not in self._pipes.values() and number not in self.seen.ended:
                self.seen.ended[number] = Ended(number, "its process ended")
            return
        self.seen.take(heard)
        told(heard)

    def _honest_ended(self, seen: Seen) -> bool:
        return all(number in seen.ended for number in self.honest)

    # What it comes to

    @property
    def agreement(self) -> bool:
        """The same record of every step at every honest peer that saw it, and the same model at the end."""
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
        """The honest peer that saw the most."""
        return max(self.honest, key=lambda number: (len(self.seen.event.get(number, {})), -number))

    def summary(self, before: dict[str, float]) -> RunSummary:
        """With the same keys as a simulation's; `before` is how good the first model was."""
        told = dict(sorted(self.seen.event.get(self.witness, {}).items()))
        event = list(told.values())
        measured = {
            one.step: one.metrics for one in event if one.metrics
        }  # at last, of the model that the run ends with
        curve = [{"step": 0, **before}, *({"step": updates, **metrics} for updates, metrics in measured.items())]
        return RunSummary(
            version=troth.__version__,
            peers=self.plan.peers,
            byzantine=self.plan.liars,
            steps=event[-1].step if event else 0,
            attack=" + ".join(self.plan.attacks) if self.plan.byzantine else None,
            defence="troth",
            metrics={name: value for name, value in curve[-1].items() if name != "step"},
            curve=curve,
            details=self._details(told),
            config=self.config,
        )

    @property
    def config(self) -> dict[str, Any]:
        """What determines it, accidents aside."""
        return {
            "swarm": True,
            "run": self.manifest.run.id.hex(),
            "task": self.manifest.task,
            "steps": self.manifest.steps,
            "attack": " + ".join(self.plan.attacks),
            "beyond_guarantee": self.manifest.parameters.beyond_guarantee,
            **self.plan.as_dict(),
        }

    def _details(self, told: dict[int, StepEvent]) -> dict[str, Any]:
        """Of what was told of each step, in order."""
        event, trained = list(told.values()), {one.step - 1 for one in told.values()}
        numbers = {f"peer{number}": number for number in range(self.plan.peers)}
        banned = {name: (step, reason) for step, one in reversed(told.items()) for name, reason in one.banned}
        steps, coalition = max(1, len(event)), self.plan.coalition()
        stopped = [f"peer{n}: {self.seen.ended[n].how}" for n in self.honest if n in self.seen.ended]
        records = self.seen.records.get(self.witness, {})
        return {
            "parameters": self.manifest.parameters.size,
            "gradients": "one process for each peer",
            "attacked_steps": sum(map(coalition.active, trained)),
            "diverged_at": None,
            "attackers_active": self.plan.liars if any(map(coalition.active, trained)) else [],
            "banned": [
                {"peer": numbers[name], "step": step, "reason": reason, "evidence": f"ban-step{step}-{name}.json"}
                for name, (step, reason) in sorted(banned.items(), key=lambda item: item[1])
            ],
            "honest_banned": len({numbers[name] for name in banned} - set(self.plan.liars)),
            "absent": [numbers[name] for one in event for name in one.left if name in numbers],
            "stalled": "; ".join(how for how in stopped if not how.endswith(": done")) or None,
            "agreement": self.agreement,
            "announced_bytes_per_step": event[-1].control_bytes // steps if event else 0,
            "bulk_bytes_per_step": event[-1].bulk_bytes // steps if event else 0,
            "audits": sum(one.audits for each in self.seen.event.values() for one in each.values()),
            "tolerant_audits": 0,
            "trials": sum(len(one.banned) for one in event),
            "attempts": sum(one.attempts for one in event),
            "beyond_guarantee": False,
            "final_record": records[max(records)].hex() if records else None,
        }

    def evidence_folder(self) -> Path:
        return folder_of(self.out, self.witness) / "evidence"
