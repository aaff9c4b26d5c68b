"""The manifest as plain values: the source of its digests, of the run's name, and of what evidence says of a run.

All keys and values here are hashed. A change makes the same plan another run.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from troth.crypto import Digest, tagged_hash
from troth.network.manifest.toml import FORMAT

if TYPE_CHECKING:
    from troth.network.manifest.manifest import Manifest

Plain = dict[str, Any]  # JSON can hold it exactly: fractions are hexadecimal


def section_digests(manifest: "Manifest") -> dict[str, Digest]:
    """By section, in an order to report them in: two manifests are equal if and only if all of these are."""
    return {
        section: tagged_hash("troth/manifest/1", section.encode(), _canonical(content))
        for section, content in _sections(manifest).items()
    }


def description(manifest: "Manifest") -> bytes:
    """Everything that `Run` does not hold elsewhere. At the top level, what recomputing a gradient needs (evidence.recompute).

    Evidence of a ban carries it to strangers, who need not know where the founders live, nor the names of many files: hence
    only digests of these.
    """
    sections = _sections(manifest)
    flat = {
        name: value
        for section in ("name", "task", "task code", "data", "initialisation", "training options")
        for name, value in sections[section].items()
    }
    flat["data_files"] = tagged_hash("troth/data files/1", _canonical({"files": flat["data_files"]})).hex()
    names = [founder.name for founder in manifest.founders]  # in the order of their keys
    addresses = tagged_hash("troth/addresses/1", *(founder.address.encode() for founder in manifest.founders))
    return _canonical(
        {
            "manifest": FORMAT,
            **flat,
            "timeouts": sections["timeouts"],
            "founders": names,
            "addresses": addresses.hex(),
        }
    )


def _sections(manifest: "Manifest") -> dict[str, Plain]:
    """Every field, once."""
    timeouts, start = manifest.timeouts, manifest.initial_state
    return {
        "name": {"name": manifest.name},
        "nonce": {"nonce": manifest.nonce.hex()},
        "task": {"task": manifest.task, "device": manifest.device, "one_by_one": manifest.one_by_one},
        "task code": {
            "code": manifest.code.hex(),
            **({"code_files": _named(manifest.code_files)} if manifest.code_files else {}),
        },
        "data": {
            "data": manifest.data.hex(),
            "data_where": manifest.data_where,
            "data_files": _named(manifest.data_files),
        },
        "initialisation": {
            "seed": manifest.seed,
            "initial_state": "" if start is None else start.hex(),
            **({} if manifest.continues is None else {"continues": manifest.continues.hex()}),
        },
        "training options": {
            "steps": manifest.steps,
            "optimizer": manifest.optimizer,
            "rate": manifest.rate.hex(),
            "schedule": manifest.schedule,
            "warmup": manifest.warmup,
        },
        "protocol": dict(manifest.parameters.plain()),
        "timeouts": {
            "delta": timeouts.delta.hex(),
            "compute": timeouts.compute.hex(),
            "bulk": timeouts.bulk.hex(),
            "memory": timeouts.memory,
            "stretch": timeouts.stretch.hex(),
        },
        "founders": {
            "founders": [
                [one.key.hex(), one.name, one.address, *([] if one.record_key is None else [one.record_key.hex()])]
                for one in manifest.founders
            ]
        },
    }


def _named(files: Sequence[tuple[str, Digest]]) -> list[list[str]]:
    return [[name, digest.hex()] for name, digest in files]


def _canonical(content: Plain) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
