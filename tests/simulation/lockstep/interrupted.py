"""Runs that are stopped and go on: from files only, compared with runs that were never stopped."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from troth.simulation import Finished, Scenario, Started, StepReport, start
from troth.simulation.lockstep.snapshots import snapshot as snapshots
from troth.simulation.lockstep.snapshots.file import read_snapshot, write_snapshot
from troth.simulation.lockstep.snapshots.snapshot import Simulation

# With this seed the two liars are banned more than two steps apart.
SMALL = Scenario(
    task="quadratic:dimension=60", peers=7, byzantine=2, attack_start=3, steps=14, evaluate_every=5, seed=2
)


@dataclasses.dataclass(frozen=True)
class Course:
    """A whole run: its result, and a report of every step."""

    finished: Finished
    reports: list[StepReport]
    trace: list[bytes]

    def __eq__(self, other: object) -> bool:
        """Equal byte for byte, from the first step that both have seen on."""
        assert isinstance(other, Course)
        seen = min(len(self.reports), len(other.reports))
        return (
            self.finished.summary.to_json() == other.finished.summary.to_json()
            and evidence_of(self.finished) == evidence_of(other.finished)
            and self.finished.parameters_D.equal(other.finished.parameters_D)
            and repr(self.reports[len(self.reports) - seen :]) == repr(other.reports[len(other.reports) - seen :])
            and self.trace == other.trace
        )


def evidence_of(finished: Finished) -> dict[str, Any]:
    return {name: (proof.text, sorted(proof.blobs)) for name, proof in finished.evidence.items()}


def to_the_end(run: Started) -> Course:
    reports = list(run)
    return Course(run.finish(), reports, list(getattr(run._simulation, "trace", [])))


def stopped_and_whole(scenario: Scenario, folder: Path) -> tuple[list[Path], Course]:
    """Files of every moment between two steps, the first and the last included, and the run that they are of."""
    run, files, reports = start(scenario), [], []
    while True:
        files.append(folder / f"{run.step}.safetensors")
        write_snapshot(files[-1], run.snapshot())
        report = next(run, None)
        if report is None:
            break
        reports.append(report)
    return files, Course(run.finish(), reports, list(getattr(run._simulation, "trace", [])))


def resumed(scenario: Scenario, file: Path) -> Course:
    return to_the_end(start(scenario, read_snapshot(file)[0]))


def stopped_after(scenario: Scenario, steps: int) -> Started:
    run = start(scenario)
    for _ in range(steps):
        next(run, None)
    return run


@contextmanager
def forgotten(table: str, name: str) -> Iterator[None]:
    """A planted bug: one attribute is not written, and so not given back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, table, tuple(one for one in getattr(snapshots, table) if one != name))
        yield


def simulation_of(run: Started) -> Simulation:
    return run._simulation
