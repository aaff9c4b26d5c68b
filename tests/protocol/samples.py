"""Sample values that many tests start from: sixteen keys, a run of the first few of them, and the record of a quiet step."""

from collections.abc import Sequence
from typing import Any

from troth.crypto import Identity, PeerId, derive
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import AuditDuty, Roles
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Parameters, Run
from troth.protocol.wire.messages import Announced, Envelope, Message

KEYS = tuple(sorted(Identity.from_secret(derive(0, "key", k)).peer for k in range(16)))


def run_of(peers: int, validators: int = 1, byzantine: int = 0) -> Run:
    """A run that the first of these keys founded."""
    return Run(
        KEYS[:peers], b"test", Parameters(size=1000, tau=1.0, byzantine=byzantine, validators=validators), bytes(32)
    )


def quiet_record(step: int, members: Sequence[PeerId], **changes: Any) -> StepRecord:
    """Record of a step in which nothing happened, but for these changes."""
    digests = {name: bytes(32) for name in ("seed_randomness", "randomness", "state_before", "state_after")}
    scales = dict.fromkeys(("tau", "spread", "length", "norm", "factor"), 1.0)
    given: dict[str, Any] = {
        "step": step,
        "members": tuple(members),
        "contributors": (),
        "roots": (),
        "parts": 1,
        "updated": True,
        "updates": step + 1,
        "judgements": (),
        **digests,
        **scales,
    }
    return StepRecord(**{**given, **changes})


STEP = 40  # of the record below
CLOSE = quiet_record(STEP, KEYS, contributors=KEYS[:5], roots=(bytes(32),) * 5, parts=5)


def dealt_audits(roles: Roles) -> list[tuple[PeerId, AuditDuty]]:
    """Every auditor with every audit that it has to do."""
    return [(auditor, audit) for auditor, audits in roles.audits.items() for audit in audits]


def roster_with_disputes(
    members: Sequence[PeerId], *pairs: tuple[int, int], since: int = 0, byzantine: int = 3
) -> Roster:
    """A roster in which these pairs, by number, have had a link dispute since that step."""
    disputes = tuple((since, members[a], members[b]) for a, b in pairs)
    return Roster(tuple(members), byzantine=byzantine, link_disputes=disputes)


def announced(sender: PeerId, message: Message) -> Announced:
    """A message as others hear it, where nobody looks at its bytes or its signature."""
    return Announced(sender, message, Envelope(b"", bytes(64)))
