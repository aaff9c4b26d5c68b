"""Example messages, one or more of every phase."""

import struct

from troth.protocol.wire.messages import (
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
    Probe,
    Report,
    Reveal,
    Ticket,
    Vote,
)

EXAMPLES: list[Message] = [
    Commit(b"a" * 32, b"b" * 32, b"c" * 32, length=2.5, signature=b"s" * 64),
    Commit(None, b"b" * 32, b"c" * 32),
    Commit(None, b"b" * 32, b"c" * 32, b"d" * 32),
    Clip((Center(3, b"d" * 32, 1.5),)),
    Clip((), b"a" * 32, b"b" * 32),
    Clip((), missing=(b"j" * 32,), basis=b"k" * 32),
    Reveal(b"e" * 32, b"\xff"),
    Reveal(b"e" * 32, b"\xff", (Probe(b"p" * 32, b"q" * 32, b"s" * 64),)),
    Commit(None, b"b" * 32, b"c" * 32, tickets=(Ticket(b"p" * 32, 77, "host:1", b"s" * 64),)),
    Confirm(b"\xff"),
    Report(struct.pack("<3d", 1.0, -2.0, 3.0), b"l" * 32),
    Accuse((Accusation(b"f" * 32, ChargeKind.GRADIENT, 6, None, b"m" * 32),), b"g" * 32, basis=b"n" * 32),
    Vote(
        (
            Ballot(b"h" * 32, b"i" * 32, ChargeKind.GRADIENT, 6, None, GuiltySide.ACCUSED),
            Ballot(None, b"i" * 32, ChargeKind.REPORT, 7, 2, GuiltySide.ACCUSER),
        )
    ),
    Commit(None, b"b" * 32, b"c" * 32, took=Measured(1, 200, 70_000)),
    Close(b"t" * 64),
]
