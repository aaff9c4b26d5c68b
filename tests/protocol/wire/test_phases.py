"""The table of phases: every bound follows from a type, and every step goes through it in order."""

from typing import Annotated

import msgspec
import pytest

from troth.crypto import Digest, Slot
from troth.protocol.core.channel import Channel, ForwardingChannel
from troth.protocol.wire.messages import (
    MOST_ACCUSATIONS,
    MOST_CANDIDATES,
    MOST_CHARGES,
    MOST_MEMBERS,
    MOST_MILLISECONDS,
    MOST_REJOINS,
    Accusation,
    Accuse,
    Ballot,
    Center,
    ChargeKind,
    Clip,
    Close,
    Commit,
    Confirm,
    GuiltySide,
    Measured,
    Message,
    Phase,
    Probe,
    Report,
    Reveal,
    SignedRejoin,
    Ticket,
    Vote,
)
from troth.protocol.wire.phases import PHASES, encode, follows, most_bytes, most_encoded_bytes, phase_of

KEY, SIGNATURE, LATE = bytes(32), bytes(64), 2**62 - 1
KEYS, LAST_PART = (KEY,) * MOST_MEMBERS, MOST_MEMBERS - 1
SLOWEST = Measured(MOST_MILLISECONDS, MOST_MILLISECONDS, MOST_MILLISECONDS)
REPORT_BYTES = 8 * MOST_MEMBERS * 66
LONGEST: list[Message] = [
    Commit(
        KEY,
        KEY,
        KEY,
        KEY,
        (SignedRejoin(KEY, KEY, SIGNATURE, SIGNATURE),) * MOST_REJOINS,
        SLOWEST,
        1.5,
        SIGNATURE,
        (Ticket(KEY, LATE, "x" * 128, SIGNATURE),) * MOST_CANDIDATES,
        KEY,
    ),
    Clip((Center(LAST_PART, KEY, 1.5),) * MOST_MEMBERS, KEY, KEY, KEYS, bytes(MOST_MEMBERS**2 // 8), KEY),
    Reveal(KEY, bytes(MOST_MEMBERS // 8), (Probe(KEY, KEY, SIGNATURE),) * MOST_CANDIDATES),
    Confirm(bytes(MOST_MEMBERS // 8)),
    Report(bytes(REPORT_BYTES), KEY),
    Accuse((Accusation(KEY, ChargeKind.REPORT, LATE, LAST_PART, KEY),) * MOST_ACCUSATIONS, KEY, KEYS, KEYS, KEY),
    Vote((Ballot(KEY, KEY, ChargeKind.COVER, LATE, LAST_PART, GuiltySide.WITHHELD, KEY, KEY),) * MOST_CHARGES),
    Close(SIGNATURE),
]


@pytest.mark.parametrize("message", LONGEST, ids=lambda message: type(message).__name__)
def test_the_bound_is_the_length_of_the_longest_message(message: Message) -> None:
    """[M3] Not a byte more, for a liar to use; not a byte less, for an honest member to lack."""
    assert len(encode(message)) == most_bytes(phase_of(message))


def test_every_message_is_announced_in_one_phase() -> None:
    assert [phase_of(message) for message in LONGEST] == list(PHASES)
    assert most_bytes(Phase.REJOIN) == most_bytes(Phase.RESTART) == -1, "nothing is announced there"


@pytest.mark.parametrize("endless", [bytes, tuple[int, ...], int, Annotated[int, msgspec.Meta(ge=0)], str])
def test_a_type_without_a_bound_is_refused(endless: object) -> None:
    with pytest.raises(TypeError, match="no bound follows"):
        most_encoded_bytes(msgspec.inspect.type_info(endless))


def slot(phase: Phase, attempt: int = 0, step: int = 5, incarnation: int = 0) -> Slot:
    return Slot(Digest(KEY), step, phase, attempt, incarnation)


@pytest.mark.parametrize(
    ("last", "now"),
    [
        (slot(Phase.COMMIT), slot(Phase.CLIP)),
        (slot(Phase.REVEAL), slot(Phase.REPORT)),
        (slot(Phase.REVEAL), slot(Phase.CONFIRM)),
        (slot(Phase.ACCUSE), slot(Phase.VOTE)),
        (slot(Phase.REVEAL), slot(Phase.CLIP, attempt=1)),
        (slot(Phase.ACCUSE), slot(Phase.COMMIT, step=6)),
        (slot(Phase.COMMIT), slot(Phase.COMMIT, step=4, incarnation=1)),
    ],
)
def test_what_may_come_next(last: Slot, now: Slot) -> None:
    assert follows(last, now)


@pytest.mark.parametrize(
    ("last", "now"),
    [
        (slot(Phase.CLIP), slot(Phase.CLIP)),
        (slot(Phase.CLIP), slot(Phase.COMMIT)),
        (slot(Phase.COMMIT), slot(Phase.REVEAL)),
        (slot(Phase.CLIP, attempt=1), slot(Phase.CLIP)),
        (slot(Phase.REVEAL), slot(Phase.REVEAL, attempt=1)),
        (slot(Phase.ACCUSE), slot(Phase.CLIP, step=6)),
    ],
)
def test_what_may_not(last: Slot, now: Slot) -> None:
    assert not follows(last, now)


def test_wrappers_forward_every_call_of_a_channel() -> None:
    def calls(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert calls(ForwardingChannel) == calls(Channel)
