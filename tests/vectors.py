"""Golden vectors: values that must be the same on every machine and in every version, as JSON under `golden/`.

`make vectors` (`python -m tests.vectors`) writes them anew, after a deliberate change only: a vector that changed by
accident means that peers with different versions no longer agree. `crypto/test_vectors.py` compares.

Floats are written in hexadecimal, 64-bit words too: nothing is rounded on the way.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from troth.clip.blocks import INT8, INT16, Code, uniforms
from troth.crypto import (
    CHUNK_BYTES,
    Identity,
    Slot,
    blob_digest,
    coin_commitment,
    derive,
    leaf_hash,
    merkle_tree,
    projection_signs,
    signed_bytes,
    stream,
    tagged_hash,
)
from troth.protocol.core.records import (
    Judgement,
    Owed,
    Returned,
    StepRecord,
    aggregates_basis,
    encode_record,
    record_bytes_to_sign,
    reports_basis,
    roots_basis,
)
from troth.protocol.core.roles import PendingAudits, Roles, combine, draw_roles, first_randomness, gradient_seed
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Parameters, Run
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
    Phase,
    Report,
    ReportNumbers,
    Reveal,
    SignedRejoin,
    Vote,
)
from troth.protocol.wire.phases import encode, phase_of
from troth.training.optimizers import cosine

GOLDEN = Path(__file__).parent / "golden"

# (seed, purpose…) of every stream that is pinned
_SEEDS: list[tuple[bytes | int, tuple[str | int | bytes, ...]]] = [
    (0, ()),
    (1, ("batch", 7)),
    (-1, ("batch", 7)),
    (2**64, ("attack", "peer", 3)),
    (b"", ("",)),
    (bytes(range(32)), ("τ", b"\x00\xff", -(2**127))),
]


def signed() -> Any:
    """Signed bytes, digests, trees, coins: what peers sign and compare."""
    peer, other = (Identity.from_secret(bytes([k]) * 32) for k in (1, 2))
    slot = Slot(tagged_hash("run"), step=7, phase=Phase.CLIP, attempt=2, incarnation=3)
    leaves = [leaf_hash(k, 10 + k, "float32", blob_digest(bytes([k]))) for k in range(5)]
    root, paths = merkle_tree(leaves)
    return {
        "peer": peer.peer.hex(),
        "signed bytes": signed_bytes(slot, peer.peer, blob_digest(b"payload")).hex(),
        "signature": peer.sign(signed_bytes(slot, peer.peer, blob_digest(b"payload"))).hex(),
        "tagged hash": [tagged_hash("tag", b"ab", b"c").hex(), tagged_hash("tag", b"a", b"bc").hex()],
        "blob digest": [blob_digest(b).hex() for b in (b"", b"payload", bytes(CHUNK_BYTES), bytes(CHUNK_BYTES + 1))],
        "leaves": [leaf.hex() for leaf in leaves],
        "root": root.hex(),
        "paths": [[node.hex() for node in path] for path in paths],
        "coin": [coin_commitment(b"c" * 32, slot, owner.peer, w).hex() for owner in (peer, other) for w in "AB"],
        "randomness": combine("roles", 7, 0, {peer.peer: b"a" * 32, other.peer: b"b" * 32}).hex(),
        "record": record_bytes_to_sign(slot.run, 7, peer.peer, tagged_hash("record")).hex(),
        "bases": [
            roots_basis({other.peer: tagged_hash("b"), peer.peer: tagged_hash("a")}, 0.5).hex(),
            aggregates_basis([tagged_hash("a"), tagged_hash("b")], tagged_hash("key"), 0.5).hex(),
            reports_basis({other.peer: tagged_hash("b"), peer.peer: tagged_hash("a")}).hex(),
        ],
    }


def messages() -> Any:
    """One message of every phase, as bytes."""
    examples: list[Message] = [
        Commit(b"a" * 32, b"b" * 32, b"c" * 32, length=2.5),
        Commit(None, b"b" * 32, b"c" * 32),
        Commit(b"a" * 32, b"b" * 32, b"c" * 32, b"h" * 32, length=0.0, signature=b"s" * 64),
        Commit(
            None,
            b"b" * 32,
            b"c" * 32,
            None,
            (SignedRejoin(b"p" * 32, b"q" * 32, b"s" * 64, b"a" * 64),),
            Measured(7, 300, 2**31 - 1),
        ),
        Clip((Center(3, b"d" * 32, 1.5),)),
        Clip((), b"a" * 32, b"b" * 32),
        Clip((), missing=(b"j" * 32,)),
        Clip((), witnessed=b"\x05", basis=b"r" * 32),
        Reveal(b"e" * 32, bytes([255])),
        Confirm(bytes([255])),
        Report(ReportNumbers(np.array([0.5]), np.array([1.0]), np.array([[2.0, -3.0]])).pack(), b"s" * 32),
        Accuse((Accusation(b"f" * 32, ChargeKind.GRADIENT, 6, None, b"t" * 32),), b"g" * 32, basis=b"u" * 32),
        Vote((Ballot(None, b"i" * 32, ChargeKind.AGGREGATE, 7, 2, GuiltySide.ACCUSED),)),
        Vote((Ballot(b"v" * 32, b"i" * 32, ChargeKind.REPORT, 7, 2, GuiltySide.ACCUSER, b"t" * 32),)),
        Close(b"s" * 64),
    ]
    record = StepRecord(
        step=3,
        members=(b"a" * 32, b"b" * 32),
        contributors=(b"a" * 32,),
        roots=(b"g" * 32,),
        parts=2,
        seed_randomness=b"c" * 32,
        randomness=b"d" * 32,
        state_before=b"e" * 32,
        state_after=b"f" * 32,
        updated=True,
        updates=4,
        tau=0.5,
        spread=1.5,
        length=3.0,
        norm=2.0,
        factor=0.75,
        judgements=(Judgement(b"a" * 32, b"b" * 32, ChargeKind.GRADIENT, 2, None, 0, None),),
        absent=(b"h" * 32,),
        struck=(b"i" * 32,),
        slowed=(b"m" * 32,),
        link_disputes=((b"n" * 32, b"o" * 32),),
        expelled=(b"j" * 32,),
        owed=(Owed(b"k" * 32, 2, 1),),
        unaudited=(b"l" * 32,),
        returned=(Returned(b"p" * 32, b"q" * 32),),
        incarnation=1,
        closing=True,
    )
    return [[phase_of(example).name, encode(example).hex()] for example in examples] + [encode_record(record).hex()]


def projections() -> Any:
    """Signs as one hexadecimal number per row: row k, coordinates start to stop."""
    return [
        {
            "key": key.hex(),
            "range": [start, stop],
            "rows": [
                "".join("+" if s > 0 else "-" for s in row) for row in projection_signs(key, 4, start, stop).tolist()
            ],
        }
        for key in (tagged_hash("key"), tagged_hash("other"))
        for start, stop in ((0, 48), (10**9, 10**9 + 16))
    ]


def roles() -> Any:
    """Run id, roles, bounds and seeds of a run of seven."""
    founders = tuple(sorted(Identity.from_secret(bytes([k]) * 32).peer for k in range(7)))
    run = Run(founders, b"description", Parameters(size=100, tau=0.5, byzantine=2, validators=2), b"n" * 32)
    first, before = first_randomness(run)
    roster = Roster.founding(run)
    drawn = draw_roles(run, roster, first, PendingAudits(6, founders))
    owed = tuple(Owed(peer, 5, 2) for peer in founders[2:4])
    everyone = draw_roles(run, roster, first, PendingAudits(6, founders[:5], owed=owed, everyone=True))
    return {
        "run": run.id.hex(),
        "first": [first.hex(), before.hex()],
        "audits": _audits(drawn),
        "owners": [owner.hex() for owner in drawn.owners],
        "bounds": list(drawn.bounds),
        "when everyone audits": {"audits": _audits(everyone), "owners": [owner.hex() for owner in everyone.owners]},
        "seed": gradient_seed(first, founders[0]).hex(),
    }


def _audits(roles: Roles) -> Any:
    return {auditor.hex(): [[a.target.hex(), a.step] for a in audits] for auditor, audits in roles.audits.items()}


def streams() -> Any:
    return [
        {
            "seed": repr(seed),
            "purpose": repr(purpose),
            "derive": derive(seed, *purpose).hex(),
            "words": [f"{word:016x}" for word in stream(seed, *purpose).words(6).tolist()],
            "integers 10": stream(seed, *purpose).integers(10, 12).tolist(),
            "integers 2**31": stream(seed, *purpose).integers(2**31, 4).tolist(),
            "uniform": [value.hex() for value in stream(seed, *purpose).uniform(4).tolist()],
            "normal": [value.hex() for value in stream(seed, *purpose).normal(4).tolist()],
            "permutation": stream(seed, *purpose).permutation(12).tolist(),
            "sample": stream(seed, *purpose).sample(1000, 6).tolist(),
            "one after another": _one_after_another(seed, purpose),
        }
        for seed, purpose in _SEEDS
    ]


def _one_after_another(seed: bytes | int, purpose: tuple[str | int | bytes, ...]) -> Any:
    """Draws of every kind from one stream: how many words each of them uses up is pinned as well."""
    drawn = stream(seed, *purpose)
    return [
        drawn.integers(100, 3).tolist(),
        [value.hex() for value in drawn.normal(1).tolist()],
        drawn.permutation(5).tolist(),
        [value.hex() for value in drawn.uniform(1).tolist()],
        drawn.sample(7, 2).tolist(),
        f"{int(drawn.words(1)[0]):016x}",
    ]


def schedules() -> Any:
    """The ends of cosine tables, where its series is at its longest and its cancellation at its worst."""
    return [
        {
            "rate": rate.hex(),
            "steps": steps,
            "first": [value.hex() for value in cosine(rate, steps)[:3]],
            "middle": cosine(rate, steps)[steps // 2].hex(),
            "last": [value.hex() for value in cosine(rate, steps)[-3:]],
        }
        for rate, steps in [(0.1, 1), (0.1, 10), (1.0, 1000), (3e-4, 777)]
    ]


def codes() -> Any:
    """Public uniforms, in units of 2⁻²⁴; two blocks of all magnitudes and a short one as they are rounded and packed."""
    key = bytes(range(0xF1, 0xF9))
    numbers_D = (stream(0, "codes").normal(520) * 2.0 ** stream(1, "codes").integers(12, 520)).astype(np.float32)
    numbers_D[:6], numbers_D[255:510:2] = [2.0**127, -(2.0**127), 2.0**-126, -0.0, 3e38, 2.0**100], 0.0
    given_D = torch.from_numpy(numbers_D)
    forms = {"int8": (INT8, INT8.round(given_D, key)), "int16": (INT16, INT16.round(given_D))}
    return {
        "uniforms": [
            (uniforms(key, start, start + 8) * 2**24).astype(int).tolist() for start in (0, 2**32 - 4, 10**12)
        ],
        "numbers": numbers_D.astype("<f4").tobytes().hex(),
        "rounded": {name: rounded_D.numpy().astype("<f4").tobytes().hex() for name, (_, rounded_D) in forms.items()},
        "packed": {name: form.pack(rounded_D).hex() for name, (form, rounded_D) in forms.items()},
        "rounding of int16": Code.known["int8"].rounding(forms["int16"][1]).hex(),
    }


VECTORS: dict[str, Callable[[], Any]] = {
    "streams": streams,
    "schedules": schedules,
    "signed": signed,
    "messages": messages,
    "projections": projections,
    "codes": codes,
    "roles": roles,
}


def golden_file(name: str) -> Path:
    return GOLDEN / f"{name}.json"


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name, values in VECTORS.items():
        text = json.dumps(values(), indent=1) + "\n"
        path = golden_file(name)
        same = path.exists() and path.read_text(encoding="utf-8") == text
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(Path.cwd())}: {'unchanged' if same else 'WRITTEN'}")


if __name__ == "__main__":
    main()
