"""A manifest of four founders, and changes of it, for tests."""

import dataclasses
from typing import Any

from troth.crypto import Digest, Identity, derive
from troth.network.manifest.manifest import Founder, Manifest
from troth.protocol.core.run import Parameters

SPEC = "quadratic:dimension=40"
KEYS = sorted(Identity.from_secret(derive(0, "founder", k)).peer for k in range(5))
FOUNDERS = tuple(
    Founder(name, key, address)
    for name, key, address in zip(
        ("alice", "bob", "carol", "dave"),
        KEYS,
        ("10.0.0.1:7001", "peer.example.org:7002", "[2001:db8::1]:7003", ""),
        strict=False,
    )
)
PLAN = Manifest(
    name="a bowl",
    nonce=bytes(range(32)),
    task=SPEC,
    code=Digest(bytes(32)),
    data=Digest(bytes([1]) * 32),
    steps=10,
    optimizer="sgd:momentum=0.5",
    rate=0.1,
    parameters=Parameters(size=40, tau=0.1, byzantine=1),
    founders=FOUNDERS,
)


def parameters(**changes: Any) -> dict[str, Any]:
    return {"parameters": dataclasses.replace(PLAN.parameters, **changes)}


def timeouts(**changes: Any) -> dict[str, Any]:
    return {"timeouts": dataclasses.replace(PLAN.timeouts, **changes)}


def first_founder(**changes: Any) -> dict[str, Any]:
    return {"founders": (dataclasses.replace(FOUNDERS[0], **changes), *FOUNDERS[1:])}
