"""Output folders: checked before hours of work, never overwritten by another run's results; and what goes into them."""

import csv
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.events.kinds import Began, How
    from troth.evidence import RunSummary
    from troth.evidence.bans import BanEvidence
    from troth.simulation import Finished, StepReport

MODEL = "model.safetensors"


class OutputError(OperatorError):
    """An output folder that cannot be used; the message says why."""


def save_results(folder: Path, finished: "Finished", reports: Sequence["StepReport"]) -> None:
    """Write evidence/, model.safetensors, curve.csv, curve.png and summary.json of a simulated run into its folder."""
    from troth.files import write_text
    from troth.lab.plots import plot_runs
    from troth.training.weights import write_model

    summary = finished.summary
    write_evidence(folder, finished.evidence, finished.names)
    write_model(folder / MODEL, finished.problem.state_dict(finished.parameters_D))
    write_curve(folder / "curve.csv", summary.peers, reports, summary.curve)
    write_text(folder / "summary.json", summary.to_json())  # where it is, those before it are too
    plot_runs([(summary.defence, summary)], folder / "curve.png", _title(summary))


class EventWriter:
    """The stream of events of a simulated run, into its folder, as the steps are made; use as a context manager. It takes the
    place of another run's when this one has ended well; else it goes."""

    def __init__(self, folder: Path, began: "Began", *, live: bool = True) -> None:
        """`live`: steps are told as they end, so their time is now."""
        from troth.events.file import EVENTS, UNDER_WAY, EventFile

        self._path, self._place = folder / UNDER_WAY, folder / EVENTS
        self._file = EventFile(self._path, fresh=True)
        self._live = live
        self.ended_early = ""  # why the run ended before its last step, if it did
        self._last = time.monotonic()
        proofs = folder / "evidence"
        run = str(proofs / "run")  # what `troth verify --run` takes, once there is a ban
        self._file.add(
            msgspec.structs.replace(began, name=folder.name, manifest=run, evidence=str(proofs), at=self._now())
        )

    def step(self, report: "StepReport") -> None:
        began, self._last = self._last, time.monotonic()
        seconds = self._last - began if self._live else None
        for event in report.events:
            self._file.add(msgspec.structs.replace(event, at=self._now(), seconds=seconds))

    def _now(self) -> float | None:
        return time.time() if self._live else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from troth.events.kinds import Ended

        stopped = self.ended_early or isinstance(error, KeyboardInterrupt)
        how: How = "stopped" if stopped else "over" if error is None else "error"
        text = str(error) if how == "error" else self.ended_early
        self._file.add(Ended(how=how, text=text, at=self._now()))
        self._file.close()
        if kind is None:
            self._path.replace(self._place)
        else:
            self._path.unlink(missing_ok=True)


def claim(folder: Path, config: dict[str, Any], *, overwrite: bool) -> Path:
    """Make the folder, and check that it can be written to and holds no other run's summary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".write-test"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(f"cannot write to `out` {folder}: {error.strerror}; choose another folder") from error
    summary = folder / "summary.json"
    if summary.exists() and not overwrite and _config_in(summary) != config:
        raise OutputError(f"{folder} holds the results of another run: choose another `out`, or add `overwrite`")
    return folder


@contextmanager
def claimed(folder: Path, config: dict[str, Any], *, overwrite: bool) -> Iterator[Path]:
    """Claim a folder for the work inside; if that fails, folders that were made for it and are still empty go again."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield claim(folder, config, overwrite=overwrite)
    except BaseException:
        for place in missing:
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
        raise


def _config_in(summary: Path) -> Any:
    try:
        return json.loads(summary.read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def write_evidence(folder: Path, evidence: Mapping[str, "BanEvidence"], names: Mapping[str, str] | None = None) -> None:
    """One file per ban, beside it what its recomputation starts from, and `run`; in place of earlier ones.

    `run` holds the run's id, and below it the key and the name of each peer: a simulation's id does not cover names.
    """
    from troth.evidence.companion_files import FILES, save_evidence
    from troth.evidence.verify import verify_ban
    from troth.files import write_text

    place = folder / "evidence"
    for old in (file for kind in (*FILES, "run") for file in place.glob(kind)):
        old.unlink()
    if evidence:
        place.mkdir(exist_ok=True)
    for name, ban in evidence.items():
        proof = verify_ban(ban.text)
        save_evidence(place / name, ban, proof)
        named = (f"{key} {name}\n" for key, name in (names or {}).items())
        write_text(place / "run", f"{proof.run.id.hex()}\n{''.join(named)}")


def write_curve(path: Path, peers: int, reports: Sequence["StepReport"], curve: Sequence[Mapping[str, float]]) -> None:
    """Write `curve.csv`, one row a step: its metrics where the model was evaluated, and how the run went."""
    from troth.files import write_text

    metrics = {int(point["step"]): {k: v for k, v in point.items() if k != "step"} for point in curve}
    names = list(dict.fromkeys(name for point in metrics.values() for name in point))
    rows: list[dict[str, Any]] = [{"step": 0, "attacked": 0, "alive": peers, "banned": 0, "absent": 0}]
    for report in reports:
        rows.append(
            {
                "step": report.step,
                "batch_loss": report.loss,
                "attacked": int(report.attacked),
                "alive": report.alive,
                "banned": rows[-1]["banned"] + len(report.bans),
                "absent": rows[-1]["absent"] + len(report.absent),
            }
        )
    text = io.StringIO()
    columns = ["step", *names, "batch_loss", "attacked", "alive", "banned", "absent"]
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, **metrics.get(row["step"], {})} for row in rows)
    write_text(path, text.getvalue())


def _title(summary: "RunSummary") -> str:
    liars = f"{len(summary.byzantine)} of {summary.peers} peers lie" if summary.byzantine else f"{summary.peers} peers"
    beyond = " (beyond the guarantee)" if summary.config["beyond_guarantee"] else ""
    return f"{summary.config['task']}, {liars}{beyond}, {summary.defence}"
