"""What a step costs each member, counted from the manifest. What is added to the counts was measured.

n members of whom m audit, D parameters of 4 bytes, s vectors of D numbers in model and optimizer.
"""

from dataclasses import dataclass, replace

import torch

from troth.clip.blocks import BLOCK, PLAIN, Code
from troth.network.manifest.manifest import Manifest
from troth.protocol.core.records import MOST_OWED
from troth.protocol.core.run import MOST_LOCAL_STEPS, effective_validators

_ANNOUNCED = (
    1000  # bytes times n², that a member sends, and receives, in a step beside gradients: 730 to 950 (n = 16 to 4)
)
_WRITTEN = 700  # bytes times n², of a step in the journal: 270 to 630
_STEPS_KEPT = 2000  # in the journal
_LOGS = 30_000_000  # log.txt begins anew at 10 MB, and two older ones are kept
_IN_MEMORY = 6  # vectors beside the state: benchmarks/results-memory.md
_RESTING = 18  # vectors on disk that audits and evidence may still need, and …
_AGGREGATES = 18 + MOST_OWED  # … aggregates, in the run's code: the same page
_CHECKPOINTS = 3 + MOST_OWED
_PROBE = 1000  # parameters; an optimizer's single numbers do not count


@dataclass(frozen=True)
class StepCost:
    """Of one member, while all founders are there."""

    members: int
    auditors: int
    size: int
    vectors: int  # of model and optimizer
    local_steps: int = 1
    code: Code = PLAIN
    exact: bool = True  # only such a run may have a code, or local steps

    @classmethod
    def of(cls, manifest: Manifest) -> "StepCost":
        members = len(manifest.founders)
        state = manifest.make_optimizer().start(torch.zeros(_PROBE))
        vectors = 1 + sum(tensor.numel() for tensor in state.values()) // _PROBE
        auditors = effective_validators(members, manifest.parameters.validators)
        numbers = manifest.parameters
        exact = numbers.deviation is None
        return cls(members, auditors, numbers.size, vectors, numbers.local_steps, numbers.coding, exact)

    @property
    def vector(self) -> int:
        """Bytes of D numbers in memory."""
        return 4 * self.size

    @property
    def sent(self) -> float:
        """Bytes: its gradient's parts to their owners, and the aggregate of its own part to all."""
        contributors = self.members - self.auditors
        rows, centers = self.code.rows.length(self.size), self.code.centers.length(self.size)
        return (rows * (contributors - 1) + centers * (self.members - 1)) / contributors

    @property
    def per_parameter(self) -> float:
        """Bytes sent, and received, for each parameter and gradient."""
        return (self.sent + self.announced) / self.size / self.local_steps

    @property
    def announced(self) -> int:
        return _ANNOUNCED * self.members**2 if self.members > 1 else 0

    @property
    def memory(self) -> int:
        return self.vector * (self.vectors + _IN_MEMORY + self.walk)

    @property
    def walk(self) -> int:
        """Vectors of a walk of local steps: model and optimizer before and after a step, and the sum of gradients."""
        return 0 if self.local_steps == 1 else 2 * self.vectors + 1

    @property
    def disk(self) -> int:
        written = _WRITTEN * self.members**2 * _STEPS_KEPT
        aggregates = _AGGREGATES * self.code.centers.length(self.size)
        return self.vector * (_CHECKPOINTS * self.vectors + _RESTING) + aggregates + written + _LOGS

    def seconds(self, megabits: float) -> float:
        """The least that sending takes on such a line."""
        return (self.sent + self.announced) * 8 / (megabits * 1e6)

    def cheaper(self) -> dict[str, float]:
        """Options that at least halve the bytes of a gradient, and the bytes for each parameter that are then left."""
        if not self.exact:
            return {}
        cheaper = {f"--code {name}": replace(self, code=code) for name, code in Code.known.items()}
        if (twice := 2 * self.local_steps) <= MOST_LOCAL_STEPS:
            cheaper[f"--local-steps {twice}"] = replace(self, local_steps=twice)
        return {name: one.per_parameter for name, one in cheaper.items() if 2 * one.per_parameter <= self.per_parameter}

    def sentences(self) -> list[str]:
        """Formulas and figures, a line each."""
        n, m = self.members, self.auditors
        numbers = (
            f"n = {n} members of whom m = {m} audit, D = {self.size:,} parameters, s = {self.vectors} vectors of D"
        )
        memory = f"4·D·(s + {_IN_MEMORY})" if self.local_steps == 1 else f"4·D·(3s + {_IN_MEMORY + 1})"
        row, center = (round(form.length(BLOCK) / BLOCK) for form in (self.code.rows, self.code.centers))
        log = f"a journal of {_STEPS_KEPT:,} steps of up to {_WRITTEN}·n² bytes, and 30 MB of log"
        rows = {
            "memory": f"{in_bytes(self.memory)} = {memory}, beside half a gigabyte of PyTorch's own",
            "disk": f"{in_bytes(self.disk)} = D·(4·({_CHECKPOINTS}s + {_RESTING}) + {center}·{_AGGREGATES}), {log}",
        }
        if n > 1:
            times = ", ".join(f"{duration(self.seconds(line))} at {line:,}" for line in (20, 100, 1000))
            rows = {
                "sent, received": f"{in_bytes(self.sent)} = D·({row}·(n − m − 1) + {center}·(n − 1))/(n − m) of gradients and "
                f"aggregates, and {in_bytes(self.announced)} = n² KB of announcements",
                "time": f"beside computing and distance: {times} Mbit/s, each way",
                "a gradient": f"{_digits(self.per_parameter)} bytes for each parameter, each way{self._advice()}",
            } | rows
        step = "A quiet step" if self.local_steps == 1 else f"A quiet step, of {self.local_steps} local ones"
        first = f"{step}, with {numbers} in model and optimizer, costs each member about"
        return [first, *(f"    {name:<15} {words}" for name, words in rows.items())]

    def _advice(self) -> str:
        less = " or ".join(f"{_digits(bytes_)} with {option}" for option, bytes_ in self.cheaper().items())
        return f"; {less}" if less else ""


def _digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def in_bytes(count: float) -> str:
    """Two digits, and the unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.0f} {unit}" if count >= 10 * size else f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(1, round(1000 * seconds))} ms"
