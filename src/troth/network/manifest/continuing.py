"""A run that goes on from the state of another: its settings are those of the other, but for what is given, or must differ."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from troth.network.manifest.founder import Founder
from troth.network.manifest.manifest import Manifest
from troth.network.manifest.options import ManifestOptions

_ITS_OWN = {"initial_state", "continues"}  # of every run that continues another


def options_from(old: Manifest, given: Mapping[str, Any], founders: int) -> ManifestOptions:
    """The options of a run of so many founders that goes on: the other's, but for those given; None counts as not given."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if "tau" in chosen:
        chosen = {"tau_auto": None, **chosen}  # the radius that is asked for, and not where another one starts
    protocol, limits = old.parameters, old.timeouts
    before = ManifestOptions(
        name=old.name,
        steps=old.steps,
        optimizer=old.optimizer,
        rate=old.rate,
        schedule=old.schedule,
        warmup=old.warmup,
        seed=old.seed,
        byzantine=protocol.byzantine if founders == len(old.founders) else None,  # else as many as these can withstand
        validators=protocol.validators,
        projections=protocol.projections,
        tau=protocol.tau,
        tau_auto=protocol.tau_auto,
        deviation=protocol.deviation,
        beyond_guarantee=protocol.beyond_guarantee,
        probation=protocol.probation,
        device=old.device,
        one_by_one=old.one_by_one,
        delta_s=limits.delta,
        compute_s=limits.compute,
        bulk_s=limits.bulk,
        stretch=limits.stretch,
        memory_bytes=limits.memory,
        data_where=old.data_where,
    )
    return replace(before, **chosen)


def differences(old: Manifest, new: Manifest) -> list[str]:
    """Everything that members of the other run have to know, as the two files name it: `training.rate: 0.01, was 0.1`."""
    lines = []
    for section in ("task", "data", "training", "protocol", "timeouts"):
        before, after = (msgspec.structs.asdict(getattr(one.as_file(), section)) for one in (old, new))
        lines += [
            f"{section}.{name}: {_short(after[name])}, was {_short(before[name])}"
            for name in after
            if after[name] != before[name] and name not in _ITS_OWN
        ]
    return [*lines, *_founders(old, new)]


def _short(value: Any) -> str:
    match value:
        case None:
            return "not set"
        case dict():
            return ", ".join(f"{name} {_short(digest)}" for name, digest in value.items()) or "none"
        case str() if len(value) == 64 and " " not in value:
            return f"{value[:8]}…"
        case _:
            return str(value)


def _founders(old: Manifest, new: Manifest) -> list[str]:
    before, after = ({one.key: one for one in run.founders} for run in (old, new))
    gone = sorted(one.name for key, one in before.items() if key not in after)
    come = sorted(one.name for key, one in after.items() if key not in before)
    lines = [f"founders: without {', '.join(gone)}"] * bool(gone) + [f"founders: with {', '.join(come)}"] * bool(come)
    for key, one in sorted(after.items()):
        if key in before and (one.name, one.address) != (before[key].name, before[key].address):
            lines.append(f"founder: {_called(one)}, was {_called(before[key])}")
    return lines


def _called(founder: Founder) -> str:
    return f"{founder.name} at {founder.address}" if founder.address else f"{founder.name}, who only dials out"
