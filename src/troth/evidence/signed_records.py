"""Signed records, followed from the founders on: who the members were, and what a quorum of them signed (SPEC U2, E1).

Records that changed nothing about the members may be left out: a quorum of the members signed the next one, and one of those is
honest. A record that is left out although it removed or returned somebody is noticed, since the next one names its members.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import msgspec

from troth.crypto import Digest, PeerId
from troth.errors import printable
from troth.evidence.file_format import Founding, UnprovedError, expect
from troth.protocol import history
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Parameters, Run, RunError
from troth.protocol.history import Flaw, SignedRecord, exact_bytes, key_of
from troth.protocol.wire.messages import MOST_MEMBERS
from troth.protocol.wire.primitives import Primitives

R = TypeVar("R", Roster, StepRecord)
Name = Callable[[PeerId], str]


def founding_of(run: Run) -> Founding:
    """The run as a file holds it."""
    return Founding(
        nonce=run.nonce.hex(),
        description=run.description.decode(),
        founders=[peer.hex() for peer in run.founders],
        parameters=run.parameters.plain(),
        record_keys={founder.hex(): key.hex() for founder, key in run.record_keys},
    )


def founded_run(founding: Founding) -> Run:
    """The run that was founded like this; its id shows whether it is the one that the reader knows."""
    # Before their keys are looked at.
    expect(len(founding.founders) <= MOST_MEMBERS, "more founders than a run can have")
    expect(len(founding.record_keys) <= len(founding.founders), "more record keys than founders")
    try:
        return Run(
            founders=tuple(key_of(peer) for peer in founding.founders),
            description=founding.description.encode(),
            parameters=Parameters.from_plain(founding.parameters),
            nonce=exact_bytes(founding.nonce),
            record_keys=tuple((key_of(one), key_of(key)) for one, key in sorted(founding.record_keys.items())),
        )
    except RunError as error:
        raise UnprovedError(f"no run can be founded like this: {error}") from error


def known_run(founding: Founding, run: Digest | None) -> Run:
    """The run that was founded like this, if it is the one that the reader knows; any run, if the reader knows none."""
    founded = founded_run(founding)
    if run is not None and founded.id != run:
        raise UnprovedError(f"the file is about run {founded.id.hex()}, not about run {run.hex()}")
    return founded


def follow_changes(run: Run, changes: Sequence[SignedRecord], tools: Primitives) -> Roster:
    """The roster after the records that changed it, from the founders on."""
    return _flawless(history.follow_changes(run, [signed.certified() for signed in changes], tools))


def open_record(run: Run, signed: SignedRecord, roster: Roster, tools: Primitives) -> StepRecord:
    """The record, if it follows on this roster and a quorum of it signed; every signature listed must fit."""
    return _flawless(history.open_record(run, signed.certified(), roster, tools))


def _flawless(found: R | Flaw) -> R:
    if isinstance(found, Flaw):
        raise UnprovedError(found.reason)
    return found


class _Names(msgspec.Struct):
    """Fields of a run's description that name people."""

    founders: list[str] = []


def names_in(run: Run, roster: Roster, known: Mapping[PeerId, str] = MappingProxyType({})) -> Name:
    """Names as the manifest gives them, each with its key. The run's id covers them, so they are as right as the id is.

    `known` are names that the reader has from elsewhere, for peers that the manifest does not name. A peer that came back under a
    successor key keeps its name. Keys without a name are shown whole: the first digits of a key can be forged.
    """
    named = {**known, **_founders_names(run)}
    for old, new in roster.successors:
        if old in named:
            named.setdefault(new, named[old])
    return lambda peer: f"{named[peer]} ({peer.hex()[:8]}…)" if peer in named else f"peer {peer.hex()}"


def _founders_names(run: Run) -> dict[PeerId, str]:
    try:
        names = msgspec.json.decode(run.description, type=_Names).founders
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return dict(zip(run.founders, map(printable, names), strict=False)) if len(names) == len(run.founders) else {}
