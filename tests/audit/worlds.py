"""Worlds of chaos in which every honest peer keeps a journal, as it would on disk: liars, crashes, cuts, loss and clocks.

`python -m tests.audit.worlds 0 100` audits the journals of so many worlds, and says what was found.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from troth.audit.files import check_changes, read_changes
from troth.audit.journal import JournalReader, SignatureChecker
from troth.audit.report import AuditReport, Check
from troth.audit.walk import Walk
from troth.network.disk.journal import Journal
from troth.protocol.core.run import Run
from troth.protocol.recovery.member import Member
from troth.protocol.wire.frames import CertifiedRecord
from troth.training.work import Training
from troth.workshop.chaos import judge as stage_play
from troth.workshop.chaos.draws import draw_plan, draw_wide
from troth.workshop.chaos.peers import HonestPeer
from troth.workshop.chaos.plan import Plan
from troth.workshop.chaos.world import Stage

ENDLESS = 1 << 40  # updates: no world is closed


class Journals:
    """The journals of one world, by peer; one that lost its disk begins another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.run: Run | None = None
        self.all: dict[int, list[Journal]] = {}

    def of(self, number: int) -> Journal:
        return self.all[number][-1]

    def begin(self, number: int) -> None:
        assert self.run is not None
        mine = self.all.setdefault(number, [])
        mine.append(Journal(self.place(number, len(mine)), self.run.id))

    def place(self, number: int, times: int) -> Path:
        return self._folder / f"peer{number}-{times}"

    def places(self) -> Iterator[tuple[int, Path]]:
        return ((number, self.place(number, k)) for number, mine in self.all.items() for k in range(len(mine)))


@contextmanager
def journalled(journals: Journals) -> Iterator[None]:
    """Have every honest peer of a world write its journal."""

    class Writer(HonestPeer):
        def __init__(self, stage: Stage, number: int) -> None:
            journals.run = stage.run
            journals.begin(number)
            super().__init__(stage, number)
            self._ports.on_announced = lambda slot, said: journals.of(self._number).announced(slot, said)
            certified = stage.world.certified

            def noted(who: int, records: Sequence[CertifiedRecord]) -> Any:
                if who == number:
                    journals.of(number).recorded(records)
                return certified(who, records)

            setattr(stage.world, "certified", noted)  # noqa: B010  # a method, replaced for one world

        async def _start_again(self, member: Member[Training]) -> Member[Training]:
            assert self._cut is not None
            if not self._cut.journal:
                journals.begin(self._number)
            return await super()._start_again(member)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_play, "HonestPeer", Writer)
        yield


def audit_journal(folder: Path, run: Run) -> AuditReport:
    report = AuditReport(run.id.hex())
    reader, changes = JournalReader(folder, run.id, report), read_changes(folder / "roster-changes.jsonl", report)
    with SignatureChecker(report) as signatures:
        walk = Walk(run, ENDLESS, changes or [], report, signatures, whole=True)
        for place, entry in reader.entries():
            walk.take(place, entry)
        walked = walk.end()
    check_changes(folder / "roster-changes.jsonl", run, changes, walked, report)
    return report


def reports_of(plan: Plan) -> list[tuple[int, AuditReport]]:
    """Audits of all journals of a world's honest peers."""
    with tempfile.TemporaryDirectory() as folder:
        journals = Journals(Path(folder))
        with journalled(journals):
            stage_play.play(plan)
        assert journals.run is not None
        return [(number, audit_journal(place, journals.run)) for number, place in journals.places()]


def main(first: int, last: int) -> None:
    worlds = records = retraced = 0
    for seed in range(first, last):
        for name, draw in (("classic", draw_plan), ("wide", draw_wide)):
            worlds += 1
            for number, report in reports_of(draw(seed, most_peers=9, steps=12)):
                records += report.counts[Check.RECORDS]
                retraced += report.retraced
                for finding in report.findings:
                    print(f"{name} {seed}, peer {number}: {finding.line()}", flush=True)
        print(f"{worlds} worlds: {records} records followed, {retraced} steps retraced", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
