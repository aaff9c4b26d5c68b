"""The types that a snapshot may hold, by name. Nothing else is ever made from a file."""

from enum import IntEnum
from typing import Any, Final

import msgspec

from troth.attacks.behaviour.absence import VanishedError
from troth.crypto import Slot
from troth.evidence.bans import BanEvidence, Certified
from troth.evidence.file_format import BanFile, SignedRecord
from troth.protocol.core.door import Door
from troth.protocol.core.errors import CannotGoOnError, LeftOutError, StalledError, UncertifiedError
from troth.protocol.core.parts import ProvenPart
from troth.protocol.core.records import Judgement, Owed, StepRecord
from troth.protocol.core.roles import Audit, PendingAudits, Roles
from troth.protocol.core.roster import Away, RecordKey, Roster
from troth.protocol.core.scales import Scales
from troth.protocol.core.state import AuditRecord, Disclosure, LastRecord, Outcome, State
from troth.protocol.wire.messages import (
    Accuse,
    Announced,
    Clip,
    Close,
    Commit,
    Confirm,
    Envelope,
    Kind,
    Phase,
    Report,
    Reveal,
    Verdict,
    Vote,
)
from troth.simulation.lockstep.drop_outs import PowerCutError
from troth.simulation.lockstep.report import Ban
from troth.training.work import Training

# Frozen dataclasses and named tuples: written field by field.
RECORDS: Final[tuple[type[Any], ...]] = (
    State,
    Roster,
    Away,
    RecordKey,
    Door,
    Scales,
    PendingAudits,
    AuditRecord,
    LastRecord,
    Training,
    Announced,
    Outcome,
    Audit,
    Roles,
    Slot,
    Disclosure,
    ProvenPart,
    Certified,
    BanEvidence,
    Ban,
)
# Messages and records of the protocol: they have bytes of their own, and a strict parser.
STRUCTS: Final[tuple[type[msgspec.Struct], ...]] = (
    StepRecord,
    Judgement,
    Owed,
    Envelope,
    Commit,
    Clip,
    Reveal,
    Confirm,
    Report,
    Accuse,
    Vote,
    Close,
    SignedRecord,
    BanFile,
)
ENUMS: Final[tuple[type[IntEnum], ...]] = (Phase, Kind, Verdict)
# Reasons why a peer could not go on: their message is all there is to them.
ERRORS: Final[tuple[type[CannotGoOnError], ...]] = (
    CannotGoOnError,
    LeftOutError,
    StalledError,
    UncertifiedError,
    PowerCutError,
    VanishedError,
)
