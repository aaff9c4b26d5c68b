"""Small files of a peer's folder: the run's mark, the changes of members, and the slots that this peer signed."""

from pathlib import Path

import msgspec

from troth.audit.report import Check, Report
from troth.audit.strict_files import FileError, check_ordinary, read_bytes
from troth.audit.walk import Walked
from troth.crypto import Digest
from troth.network.disk import roster_changes, signed_slots
from troth.protocol.broadcast.signed_slots import NO_SLOT, SlotKey
from troth.protocol.core.records import decode_record
from troth.protocol.core.run import Run
from troth.protocol.history.follow import follow_changes
from troth.protocol.history.record import Flaw
from troth.protocol.recovery.restart_quorum import proven, tip_of
from troth.protocol.wire.frames import CertifiedRecord, RestartCertificate
from troth.protocol.wire.primitives import Primitives

_MOST_CHANGES = 64 << 20
_MOST_SLOTS = 1 << 20
_MOST_CERTIFICATE = 1 << 20


def check_mark(folder: Path, run: Digest, report: Report) -> None:
    """The file `run` names the run, and nothing else."""
    path = folder / "run"
    try:
        right = read_bytes(path, 1 << 10) == f"{run.hex()}\n".encode()
    except FileNotFoundError:
        report.skipped(str(path), "it is not there")
        return
    except FileError as error:
        report.wrong(Check.FILES, str(path), str(error))
        return
    if right:
        report.passed(Check.FILES)
    else:
        report.wrong(Check.FILES, str(path), "it does not name this run, or not in the way it is written")


def read_changes(path: Path, report: Report) -> list[CertifiedRecord] | None:
    """Records that changed the roster; None if the file is not there, or is wrong."""
    try:
        check_ordinary(path, _MOST_CHANGES)
        found = roster_changes.read_exactly(path)
        for one in found:
            decode_record(one.record)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        report.wrong(Check.FILES, str(path), f"this is no list of changes of the roster: {error}")
        return None
    return found


def check_changes(path: Path, run: Run, changes: list[CertifiedRecord] | None, walked: Walked, report: Report) -> None:
    """All changes of members since the founders, signed, and those of the journal among them."""
    expected = [walked.raw[step] for step, record in sorted(walked.records.items()) if record.changes_roster]
    first = min(walked.records, default=0)
    if changes is None:
        if expected and not path.exists():
            report.wrong(Check.FILES, str(path), "it is not there, and members changed")
        return
    later = [(number, one) for number, one in enumerate(changes, 1) if decode_record(one.record).step >= first]
    for (number, one), raw in zip(later, expected, strict=False):
        if one.record != raw:
            report.wrong(Check.FILES, f"{path}, line {number}", "the journal holds another record of this change")
            return
    if len(later) > len(expected) and not walked.broken:
        number, extra = later[len(expected)]
        step = decode_record(extra.record).step
        what = (
            f"members changed in step {step}, of which the journal holds no record: it was cut, or this line was added"
        )
        report.wrong(Check.FILES, f"{path}, line {number}", what)
        return
    if len(later) < len(expected):
        report.wrong(Check.FILES, str(path), "it lacks a change of members that the journal holds")
        return
    if isinstance(found := follow_changes(run, changes, Primitives()), Flaw):
        report.wrong(Check.FILES, str(path), f"the changes do not follow from the founders: {found.reason}")
        return
    report.passed(Check.FILES)


def check_slots(path: Path, report: Report) -> SlotKey | None:
    """The slots that this peer signed, each later than the one before; the last one (SPEC B1). None if that is not known."""
    try:
        found = signed_slots.read_exactly(read_bytes(path, _MOST_SLOTS))
    except FileNotFoundError:
        report.skipped(str(path), "it is not there")
        return None
    except ValueError as error:
        report.wrong(Check.FILES, str(path), f"the file was changed or damaged: {error}")
        return None
    report.passed(Check.FILES)
    return found[-1] if found else NO_SLOT


def check_restart(path: Path, run: Run, walked: Walked, report: Report) -> None:
    """The certificate of the last restart that this peer began with, if there was one (SPEC B5)."""
    if not path.exists():
        return
    try:
        raw = read_bytes(path, _MOST_CERTIFICATE)
        begun = msgspec.msgpack.decode(raw, type=RestartCertificate, strict=True)
        state = walked.states.get(begun.step)
        if msgspec.msgpack.encode(begun) != raw:
            raise FileError("it is not written the one way certificates are written")
        if state is None:
            report.skipped(str(path), f"the journal leads to no state before step {begun.step}")
            return
        roster, tip = state.roster, tip_of(run, state, state.model)
        if proven(begun, tip, roster.members, roster.quorum, Primitives()) != begun:
            raise FileError("it is no restart certificate of the state that the records lead to")
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        report.wrong(Check.FILES, str(path), str(error))
        return
    report.passed(Check.FILES)
