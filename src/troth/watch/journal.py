"""Events from a journal alone: what was agreed on, without the times, losses and bytes that no journal holds.

This tells records that a quorum signed; the rest `troth audit` checks. A journal whose chain is broken is refused too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from troth.audit.walk import begin_after
from troth.crypto import Digest, PeerId, Slot
from troth.errors import OperatorError, printable
from troth.events.from_step import Votes, event_of_record
from troth.events.kinds import Ended, Event, Stepped
from troth.network.disk.journal import FILE, FILE_NAME, read_exactly, read_journal
from troth.network.disk.lock import DiskError
from troth.network.manifest.manifest import Manifest
from troth.network.node.founding import PeerNames
from troth.network.node.telling import beginning
from troth.protocol.core.records import StepRecord, decode_record
from troth.protocol.core.roles import NO_PENDING_AUDITS, PendingAudits, closing_roles, draw_roles, first_randomness
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.protocol.history import Begin, Entry, Flaw, Recorded, Said, Signed, open_record
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Announced, Envelope, Phase
from troth.protocol.wire.primitives import UNSHARED


class JournalEventsError(OperatorError):
    """A folder whose journal cannot be told; the message names the way out."""


def journal_events(folder: Path, manifest: Manifest) -> Iterator[Event]:
    """The stream of a run, as far as a peer's journal has it. Raises `JournalEventsError`."""
    place = folder / "journal"
    files = sorted(path for path in place.glob("steps-*.jsonl") if FILE_NAME.fullmatch(path.name))
    if not files:
        raise JournalEventsError(
            printable(f"{folder} holds no journal: name a peer's folder, as `troth join` leaves it")
        )
    yield beginning(manifest, "journal")
    closed = False
    try:
        follower = _Follower(manifest, place / FILE)
        for entry in (entry for path in files for entry in read_journal(path)):
            if (event := follower.take(entry)) is not None:
                closed = event.closing
                yield event
    except (DiskError, OSError, msgspec.MsgspecError) as error:
        raise JournalEventsError(printable(f"{place}: {error}")) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise JournalEventsError(printable(f"{place} holds a line that cannot be read: {error}")) from error
    # Read once: whatever its peer does now, this is all that is told.
    yield Ended(how="over") if closed else Ended(how="stopped", text="the journal has no more")


@dataclass(frozen=True)
class _Before:
    """What the roles of a step follow from."""

    roster: Roster
    last: StepRecord | None  # None: the first step; or it was deleted

    def after(self, record: StepRecord) -> "_Before":
        return _Before(self.roster.after(record), record)


@dataclass
class _Heard:
    """What a journal holds of a step's announcements, as far as it is told."""

    attempts: int = 1
    votes: dict[int, Votes] = field(default_factory=dict)  # by attempt


class _Follower:
    """Follows records from the founders on, or from the first that is left."""

    def __init__(self, manifest: Manifest, changes: Path) -> None:
        self._manifest = manifest
        self._changes = changes
        self._names = PeerNames(manifest.name_of)
        self._unsigned: Recorded | None = None  # a record whose signatures come next
        self._here: _Before | None = None  # before the next record
        self._there: _Before | None = None  # before the last one, should it be made again in another incarnation
        self._said: dict[tuple[int, int], _Heard] = {}  # by incarnation and step

    def take(self, entry: Entry) -> Stepped | None:
        match entry:
            case Begin() if entry.run != self._manifest.run.id.hex():
                raise ValueError("it is another run's: name its own run.toml with --run")
            case Said():
                self._hear(entry)
            case Recorded():
                self._unsigned = entry
            case Signed() if (signed := entry.under(self._unsigned)) is not None:
                return self._follow(signed)
        return None

    def _hear(self, entry: Said) -> None:
        said = self._said.setdefault((entry.incarnation, entry.step), _Heard())
        said.attempts = max(said.attempts, entry.attempt + 1)
        if entry.phase == Phase.VOTE:
            said.votes[entry.attempt] = _votes(entry.slot(self._manifest.run.id), entry.envelopes)

    def _follow(self, signed: CertifiedRecord) -> Stepped:
        run, before = self._manifest.run, self._before(decode_record(signed.record))
        record = open_record(run, signed, before.roster, UNSHARED)
        if isinstance(record, Flaw):
            raise ValueError(record.reason)
        said = self._said.pop((record.incarnation, record.step), _Heard())
        self._said = {key: kept for key, kept in self._said.items() if key[1] > record.step}
        after = before.after(record)
        self._there, self._here = before, after
        self._names.learn(after.roster.successors)
        randomness, due = _draw(run, before, record)
        draw = closing_roles if record.closing else draw_roles
        event = event_of_record(
            run,
            record,
            draw(run, before.roster, randomness, due),
            said.votes,
            after.roster,
            self._names,
            of=self._manifest.steps,
            quorum=before.roster.quorum,
        )
        return msgspec.structs.replace(event, attempts=said.attempts)

    def _before(self, record: StepRecord) -> _Before:
        if self._here is not None and self._here.last is not None and self._here.last.step == record.step:
            assert self._there is not None
            return self._there
        if self._here is not None and self._here.last is not None and record.step == self._here.last.step + 1:
            return self._here
        if record.step == 0:
            return _Before(Roster.founding(self._manifest.run), None)
        changes = read_exactly(self._changes) if self._changes.exists() else []
        earlier = [one for one in changes if decode_record(one.record).step < record.step]
        here = begin_after(self._manifest.run, record, earlier, UNSHARED)
        if isinstance(here, Flaw):
            raise ValueError(here.reason)
        return _Before(here.roster, None)


def _draw(run: Run, before: _Before, record: StepRecord) -> tuple[Digest, PendingAudits]:
    """The randomness of a step's roles, and the audits that were due. Where the record before was deleted, nobody knows."""
    if before.last is not None:
        return Digest(before.last.randomness), PendingAudits.between(before.last, record)
    first = first_randomness(run)[0]
    return first, replace(NO_PENDING_AUDITS, everyone=record.began and record.incarnation > 0)


def _votes(slot: Slot, envelopes: Mapping[PeerId, Envelope]) -> Votes:
    opened = {peer: UNSHARED.read(slot, peer, envelope) for peer, envelope in envelopes.items()}
    return {peer: vote for peer, vote in opened.items() if isinstance(vote, Announced)}
