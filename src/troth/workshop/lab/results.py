"""What goes into the folder of a simulated run, and into that of a sweep."""

import csv
import io
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct

from troth.files import lock_folder, write_bytes, write_text
from troth.version import __version__
from troth.workshop.lab.files import RESULTS, SET_ASIDE, SWEEP, TIMES, SweepError, convert, read_lines
from troth.workshop.lab.sweep import Cell, Sweep

if TYPE_CHECKING:
    from troth.events.kinds import Began, How
    from troth.evidence.bans import BanEvidence
    from troth.evidence.file_format import RunSummary
    from troth.workshop.simulation import Finished, StepReport


MODEL = "model.safetensors"


def save_results(folder: Path, finished: "Finished", reports: Sequence["StepReport"]) -> None:
    """Write evidence/, model.safetensors, curve.csv, curve.png and summary.json of a simulated run into its folder."""
    from troth.training.weights import write_model
    from troth.workshop.lab.plots import plot_runs

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


def write_evidence(folder: Path, evidence: Mapping[str, "BanEvidence"], names: Mapping[str, str] | None = None) -> None:
    """One file per ban, beside it what its recomputation starts from, and `run`; in place of earlier ones.

    `run` holds the run's id, and below it the key and the name of each peer: a simulation's id does not cover names.
    """
    from troth.evidence.companion_files import FILES, save_evidence
    from troth.evidence.verify import verify_ban

    place = folder / "evidence"
    for old in (file for kind in (*FILES, "run") for file in place.glob(kind)):
        old.unlink()
    if evidence:
        place.mkdir(exist_ok=True)
    for name, ban in evidence.items():
        proof = verify_ban(ban.text)
        save_evidence(place / name, ban, proof.state)
        named = (f"{key} {name}\n" for key, name in (names or {}).items())
        write_text(place / "run", f"{proof.run.id.hex()}\n{''.join(named)}")


def write_curve(path: Path, peers: int, reports: Sequence["StepReport"], curve: Sequence[Mapping[str, float]]) -> None:
    """Write `curve.csv`, one row a step: its metrics where the model was evaluated, and how the run went."""
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


# The folder of a sweep's results: a line for each run, kept as soon as it is there, and put in order at the end.


_GOES_ON = "the runs that were kept are there, and the same command goes on from them"


class _Head(Struct):
    """Parts of a line by which a run is found again."""

    key: str
    labels: dict[str, Any]


class Store:
    """Results of one sweep. `done` holds those that are there, by key and labels."""

    def __init__(self, folder: Path, sweep: Sweep, cells: Sequence[Cell], *, extend: bool = False) -> None:
        """Open a folder, or make one, for this process alone. Lines that are not this sweep's are refused, or with `extend` set
        aside."""
        self.folder = folder
        self._sweep = sweep
        self._cells = {_place(cell.job.key, cell.labels): cell for cell in cells}
        self._by_key: dict[str, list[Cell]] = {}
        for cell in cells:
            self._by_key.setdefault(cell.job.key, []).append(cell)
        self._lines: dict[str, dict[str, Any]] = {}
        with _writing(folder, "choose another folder"), ExitStack() as undone:
            folder.mkdir(parents=True, exist_ok=True)
            # Two that write here would each replace the file by what it knows, and lose the other's runs.
            lock = lock_folder(folder)
            if lock is None:
                raise SweepError(
                    f"another 'troth lab run' writes to `out` {folder}: wait for it, or choose another folder"
                )
            self._lock = lock
            undone.callback(lock.release)
            self._open(extend=extend)
            undone.pop_all()

    def _open(self, *, extend: bool) -> None:
        folder, foreign = self.folder, self._take_in()
        if foreign and not extend:
            version, name = foreign[0].get("version"), foreign[0].get("sweep")
            other = f"version {version}" if version != __version__ else f"sweep '{name}'"
            raise SweepError(
                f"{folder} holds {len(foreign)} runs that are not this sweep's, of {other}: choose another `out`, "
                f"or `extend` it: then they go to {SET_ASIDE}"
            )
        if foreign:
            with (folder / SET_ASIDE).open("ab") as aside:
                aside.writelines(map(_to_line, foreign))
        if (folder / RESULTS).exists():  # without torn and foreign lines, and those of runs that failed
            _write_lines(folder / RESULTS, list(self._lines.values()))
        _cut_torn_end(folder / TIMES)
        write_text(folder / SWEEP, self._sweep.text)
        self._file = (folder / RESULTS).open("ab")

    def _take_in(self) -> list[dict[str, Any]]:
        """Remember the results that are there; give those that belong to no cell. A run that failed is made again."""
        foreign = []
        for line in read_lines(self.folder / RESULTS, _checked_line)[0]:
            place = _place(line["key"], line["labels"])
            if "error" in line:
                continue
            if place in self._cells:
                self._lines[place] = line
            else:
                foreign.append(line)
        return foreign

    @property
    def missing(self) -> set[str]:
        """Keys of the runs that are still to be made."""
        return {cell.job.key for place, cell in self._cells.items() if place not in self._lines}

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [line for line in self._lines.values() if "error" in line]

    def add(self, key: str, found: Mapping[str, Any], seconds: float) -> None:
        """Keep a run's results at once, for every cell that it belongs to."""
        lines = {}
        for cell in self._by_key[key]:
            head = {"key": key, "version": __version__, "sweep": self._sweep.name}
            lines[_place(key, cell.labels)] = {**head, "labels": cell.labels, "config": cell.config, **found}
        self._lines |= lines  # first: `close`, after an interrupt, would drop from the file what is not here
        with _writing(self.folder, _GOES_ON):
            self._file.write(b"".join(map(_to_line, lines.values())))
            self._file.flush()
            os.fsync(self._file.fileno())
            with (self.folder / TIMES).open("ab") as file:
                file.write(_to_line({"key": key, "seconds": round(seconds, 3), "machine": machine()}))

    def close(self) -> None:
        """Put what is there into the sweep's order: with all runs, the same file however they were made."""
        try:
            with suppress(OSError):  # what could not be written before cannot be now; it is told already
                self._file.close()
            with _writing(self.folder, _GOES_ON):
                lines = [self._lines[place] for place in self._cells if place in self._lines]
                _write_lines(self.folder / RESULTS, lines)
        finally:
            self._lock.release()


@contextmanager
def _writing(folder: Path, way_out: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SweepError(f"cannot write to `out` {folder}: {error.strerror}; {way_out}") from error


def machine() -> str:
    """Where a run was made: bits, and times, depend on it."""
    import torch

    return f"{platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__}"


def _checked_line(line: dict[str, Any]) -> dict[str, Any]:
    convert(line, _Head)
    return line


def _cut_torn_end(path: Path) -> None:
    """Drop the end of a line that was not written whole: the next would be glued to it."""
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        write_bytes(path, content[: content.rfind(b"\n") + 1])


def _write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    write_bytes(path, b"".join(map(_to_line, lines)))


def _to_line(line: Mapping[str, Any]) -> bytes:
    text = json.dumps(line, ensure_ascii=False, allow_nan=False, default=str) + "\n"
    return text.encode(errors="backslashreplace")  # half a surrogate pair, in an error's text: as JSON escapes it


def _place(key: str, labels: Mapping[str, Any]) -> str:
    return key + json.dumps(labels, sort_keys=True, default=str)
