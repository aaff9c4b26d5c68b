"""The check of a greeting, without a network."""

from dataclasses import dataclass, field

import msgspec
import pytest

from troth.crypto import Digest, Identity, PeerId, derive
from troth.network.neighbour import (
    CONTROL_PACKET,
    CONTROL_SESSION,
    FIRST_MODEL,
    HARDWARE,
    VERSION,
    Hello,
    Refused,
    SessionMessage,
    Standing,
    check_greeting,
    delegation_bytes,
    encode_session_message,
)
from troth.network.transport.base import Lane

MEMBER, SUCCESSOR, STRANGER = (Identity.from_secret(derive(0, "greeting", k)) for k in range(3))
RUN = Digest(b"r" * 32)
MINE = Hello(VERSION, RUN, {"task": b"t" * 32}, bytes(32), None, bytes(32))
HELLO = Hello(VERSION, RUN, {"task": b"t" * 32}, MEMBER.peer, None, bytes(32))


@dataclass(frozen=True)
class Greeting:
    said: SessionMessage
    peer: PeerId = MEMBER.peer
    lane: Lane = Lane.CONTROL
    kind: bytes = CONTROL_SESSION
    banned: frozenset[PeerId] = field(default_factory=frozenset)

    def refusal(self) -> str | None:
        heard = (self.lane, self.kind + encode_session_message(self.said))
        found = check_greeting(heard, self.peer, MINE, {MEMBER.peer}, self.banned)
        return found if isinstance(found, str) else None


def test_a_member_is_welcome() -> None:
    assert Greeting(HELLO).refusal() is None


@pytest.mark.parametrize(("section", "advice"), [(FIRST_MODEL, "versions of PyTorch"), (HARDWARE, "troth doctor")])
def test_a_machine_that_computes_something_else_is_told_so_before_it_is_taken_for_a_liar(
    section: str, advice: str
) -> None:
    mine = msgspec.structs.replace(MINE, sections={**MINE.sections, section: b"a" * 32})
    for theirs in (b"b" * 32, None):
        said = msgspec.structs.replace(HELLO, sections={**HELLO.sections, **({section: theirs} if theirs else {})})
        heard = (Lane.CONTROL, CONTROL_SESSION + encode_session_message(said))
        refusal = check_greeting(heard, MEMBER.peer, mine, {MEMBER.peer}, frozenset())
        assert isinstance(refusal, str)
        assert advice in refusal
    other_run = msgspec.structs.replace(HELLO, run=b"o" * 32)
    heard = (Lane.CONTROL, CONTROL_SESSION + encode_session_message(other_run))
    assert check_greeting(heard, MEMBER.peer, mine, {MEMBER.peer}, frozenset()) == (
        "another run: the manifests differ in founders or nonce"
    )


def test_where_classes_differ_both_machines_are_described() -> None:
    mine = msgspec.structs.replace(
        MINE, sections={**MINE.sections, HARDWARE: b"a" * 32}, machine="NVIDIA H200, CUDA 13.0"
    )
    for machine, shown in (
        ("cpu (x86_64, AVX2)", "(its machine: cpu (x86_64, AVX2); this one: NVIDIA H200, CUDA 13.0)"),
        ("\x1b[2Jevil\n" + "x" * 400, "(its machine: ?[2Jevil?" + "x" * 131 + "; this one: NVIDIA H200, CUDA 13.0)"),
    ):
        said = msgspec.structs.replace(HELLO, sections={**HELLO.sections, HARDWARE: b"b" * 32}, machine=machine)
        heard = (Lane.CONTROL, CONTROL_SESSION + encode_session_message(said))
        refusal = check_greeting(heard, MEMBER.peer, mine, {MEMBER.peer}, frozenset())
        assert isinstance(refusal, str)
        assert refusal.endswith(shown)
        assert len(refusal) <= 500, "or the other side would not hear all of it"


def test_a_successor_is_welcome_with_a_delegation_for_this_run_and_its_own_key() -> None:
    """[B1]"""
    right = MEMBER.sign(delegation_bytes(RUN, SUCCESSOR.peer))
    assert Greeting(msgspec.structs.replace(HELLO, delegation=right), SUCCESSOR.peer).refusal() is None
    for wrong in (
        None,
        MEMBER.sign(delegation_bytes(Digest(b"o" * 32), SUCCESSOR.peer)),
        MEMBER.sign(delegation_bytes(RUN, STRANGER.peer)),
        STRANGER.sign(delegation_bytes(RUN, SUCCESSOR.peer)),
    ):
        said = msgspec.structs.replace(HELLO, delegation=wrong)
        assert Greeting(said, SUCCESSOR.peer).refusal() == "it claims a seat that is not its own"


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (Greeting(HELLO, lane=Lane.BULK), "it did not say hello"),
        (Greeting(HELLO, kind=CONTROL_PACKET), "it did not say hello"),
        (Greeting(Standing(True, True, 1)), "it did not say hello"),
        (Greeting(Refused("no")), "it refuses this peer: no"),
        (Greeting(HELLO, banned=frozenset({MEMBER.peer})), "it is banned from this run"),
        (Greeting(msgspec.structs.replace(HELLO, member=STRANGER.peer)), "its key is not in this run"),
    ],
)
def test_anything_else_is_refused(greeting: Greeting, message: str) -> None:
    assert greeting.refusal() == message


def test_a_ban_follows_a_member_to_its_successor() -> None:
    right = MEMBER.sign(delegation_bytes(RUN, SUCCESSOR.peer))
    said = msgspec.structs.replace(HELLO, delegation=right)
    for banned in (MEMBER.peer, SUCCESSOR.peer):
        assert Greeting(said, SUCCESSOR.peer, banned=frozenset({banned})).refusal() == "it is banned from this run"
