"""The model of the run: `model.json` and the weights beside it, held against the journal's last record (SPEC E4)."""

from pathlib import Path

from troth.api.agreed_task import AgreedTask
from troth.api.evidence_files import read_text
from troth.audit.report import Check, Report
from troth.audit.strict_files import FileError, load_tensors
from troth.audit.walk import Walked
from troth.evidence.errors import RecomputeError, UnprovedError
from troth.evidence.model_file import ModelFile, from_text
from troth.evidence.verify_model import ModelProof, check_weights, verify_model
from troth.protocol.core.run import Run

_MOST_WEIGHTS = 1 << 42  # bytes; `check_weights` knows the model's size


def check_model(folder: Path, run: Run, walked: Walked, task: AgreedTask | None, report: Report) -> None:
    """Check the certificate and the weights, as `troth verify` does, and that the journal leads to them."""
    path = folder / "model.json"
    if not path.exists():
        if walked.last is not None and walked.last.closing:
            report.skipped(str(path), "it is not there, though the run is closed")
        else:
            report.skipped("the run's model", "the run is not closed, so nobody has signed one")
        return
    try:
        file = from_text(read_text(path))
        _check_place(file, walked)
        if not file.closed:
            report.skipped("the run's model", "it ended unclosed: too few signed its last record")
            return
        proof = verify_model(read_text(path), run.id)
    except OSError as error:
        report.wrong(Check.MODEL, str(path), f"cannot be read: {error.strerror or error}")
        return
    except ValueError as error:  # `UnprovedError` is one
        report.wrong(Check.MODEL, str(path), str(error))
        return
    _check_weights(folder / "model.safetensors", proof, task, report)


def _check_place(file: ModelFile, walked: Walked) -> None:
    """Raise `FileError` unless the certificate's records are the journal's."""
    if walked.broken:
        return
    last, first = walked.last, min(walked.records, default=0)
    here = {raw.hex(): step for step, raw in walked.raw.items()}
    if file.record and (last is None or here.get(file.record) != last.step):
        raise FileError(
            "its last record is not the journal's last: the journal was cut, or the certificate is of another history"
        )
    shown = [one.record for one in file.history if one.record in here]
    expected = [
        raw.hex()
        for step, raw in sorted(walked.raw.items())
        if walked.records[step].changes_roster and raw.hex() != file.record
    ]
    if first == 0 and [one.record for one in file.history] != expected:
        raise FileError("the changes of members in it are not those of the journal")
    if shown != expected:
        raise FileError("it lacks a change of members that the journal holds")


def _check_weights(path: Path, proof: ModelProof, task: AgreedTask | None, report: Report) -> None:
    if task is None:
        report.skipped(str(path), "the task is not run, as asked, so nobody can tell which weight is which")
        return
    try:
        load_tensors(path, _MOST_WEIGHTS)
        check_weights(proof, task.for_weights(proof.run), path)
    except FileNotFoundError:
        report.wrong(Check.MODEL, str(path), "it is not there, and model.json is about it")
    except OSError as error:
        report.wrong(Check.MODEL, str(path), f"cannot be read: {error.strerror or error}")
    except RecomputeError as error:
        report.skipped(str(path), f"it can be told only with the task which weight is which: {error}")
    except (FileError, UnprovedError) as error:
        report.wrong(Check.MODEL, str(path), str(error))
    else:
        report.passed(Check.MODEL)
