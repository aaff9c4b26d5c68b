"""The table of fuzzed decoders: for each its inputs, fresh and hostile, and what it may do with them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import msgspec

from tests.fuzz.evidence import forger
from tests.fuzz.evidence_inputs import (
    bytes_of,
    feed_certified_records,
    feed_evidence,
    feed_record,
    feed_state,
    feed_text,
    record_bytes,
)
from tests.fuzz.message_inputs import (
    PHASES,
    code_bytes,
    feed_bits,
    feed_codes,
    feed_message,
    feed_packet,
    feed_report,
    hostile_code_bytes,
    message_bytes,
    packet_bytes,
    report_bytes,
)
from tests.fuzz.model_inputs import feed_model, hostile_model_bytes, model_bytes
from tests.fuzz.mutate import altered, damaged
from tests.fuzz.sessions import (
    Fed,
    feed_announcement,
    feed_channel,
    feed_observer,
    fresh_session,
    hostile_session,
    session_bytes,
    session_of,
)
from tests.fuzz.signature_inputs import (
    feed_key,
    feed_proven_part,
    feed_signature,
    hostile_key_bytes,
    hostile_proven_part_bytes,
    hostile_signature_bytes,
    key_bytes,
    proven_part_bytes,
    signature_bytes,
)

CHANNEL_PACKETS, ANNOUNCEMENT_PACKETS = 60, 16  # in one session


@dataclass(frozen=True)
class Target:
    """One decoder. `feed` raises if it does anything but accept or refuse, or accepts what it must not."""

    name: str
    share: int  # of inputs, beside those of the others
    fresh: Callable[[Random], bytes]  # what an honest peer may send
    hostile: Callable[[Random], bytes]
    feed: Callable[[bytes], Fed]
    inputs: int = 1  # in one draw


def _hostile(fresh: Callable[[Random], bytes], random: Random) -> bytes:
    """Damaged bytes, or an odd tree, or both, or noise."""
    match random.randrange(10):
        case 0:
            return random.randbytes(random.choice((0, 1, 2, 8, 40, 300)))
        case 1 | 2 | 3 | 4:
            return damaged(fresh(random), random, (fresh(random),))
        case 5:
            return damaged(altered(fresh(random), random), random)
        case _:
            return altered(fresh(random), random)


TARGETS: tuple[Target, ...] = (
    Target("frames.decode_packet", 320, packet_bytes, partial(_hostile, packet_bytes), feed_packet),
    *(
        Target(
            f"messages.decode/{phase.name}",
            40,
            partial(message_bytes, phase),
            partial(_hostile, partial(message_bytes, phase)),
            partial(feed_message, phase),
        )
        for phase in PHASES
    ),
    Target("ReportNumbers.unpack", 20, report_bytes, lambda random: damaged(report_bytes(random), random), feed_report),
    Target("Blocks.unpack", 40, code_bytes, hostile_code_bytes, feed_codes),
    Target(
        "delivered.bits_of",
        10,
        lambda random: random.randbytes(20),
        lambda random: random.randbytes(random.randrange(99)),
        feed_bits,
    ),
    Target("records.decode_record", 80, record_bytes, partial(_hostile, record_bytes), feed_record),
    Target(
        "bans.from_text",
        40,
        lambda random: bytes_of(random.choice(forger().texts)),
        lambda random: bytes_of(forger().written(random)),
        feed_text,
    ),
    Target(
        "verify.verify_ban",
        20,
        lambda random: bytes_of(random.choice(forger().texts)),
        lambda random: bytes_of(forger().forged(random)),
        feed_evidence,
    ),
    Target("verify_model.verify_model", 20, model_bytes, hostile_model_bytes, feed_model),
    Target(
        "comeback.follow",
        10,
        lambda random: msgspec.msgpack.encode(forger().certified[: random.randint(1, 4)]),
        lambda random: msgspec.msgpack.encode(forger().followed(random)),
        feed_certified_records,
    ),
    Target("work.unpack", 20, lambda _: forger().state, lambda random: forger().state_bytes(random), feed_state),
    Target("crypto.verify", 40, signature_bytes, hostile_signature_bytes, feed_signature),
    Target("crypto.valid_peer", 20, key_bytes, hostile_key_bytes, feed_key),
    Target("parts.opens", 40, proven_part_bytes, hostile_proven_part_bytes, feed_proven_part),
    Target(
        "Announcement",
        70,
        lambda random: session_bytes(fresh_session(random, ANNOUNCEMENT_PACKETS)),
        lambda random: session_bytes(hostile_session(random, ANNOUNCEMENT_PACKETS)),
        lambda raw: feed_announcement(session_of(raw)),
        ANNOUNCEMENT_PACKETS,
    ),
    Target(
        "BroadcastChannel",
        70,
        lambda random: session_bytes(fresh_session(random, CHANNEL_PACKETS)),
        lambda random: session_bytes(hostile_session(random, CHANNEL_PACKETS)),
        lambda raw: feed_channel(session_of(raw)),
        CHANNEL_PACKETS,
    ),
    Target(
        "BroadcastChannel/looks-on",
        30,
        lambda random: session_bytes(fresh_session(random, CHANNEL_PACKETS)),
        lambda random: session_bytes(hostile_session(random, CHANNEL_PACKETS, end_share=0.7)),
        lambda raw: feed_observer(session_of(raw)),
        CHANNEL_PACKETS,
    ),
)


BY_NAME = {target.name: target for target in TARGETS}
