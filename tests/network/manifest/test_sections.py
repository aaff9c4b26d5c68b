"""The same run if and only if every field is the same; and the section that differs can be named."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.network.manifest.plans import FOUNDERS, KEYS, PLAN, SPEC, first_founder, parameters, timeouts
from troth.crypto import Digest
from troth.network.manifest.manifest import Founder, Manifest
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.run import Parameters

# By field: other values of the manifest, and the section that must tell.
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"name": "another bowl"}, "name"),
    "nonce": ({"nonce": bytes(32)}, "nonce"),
    "task": ({"task": "quadratic:dimension=40,noise=0.2"}, "task"),
    "device": ({"device": "cuda"}, "task"),
    "one_by_one": ({"one_by_one": True}, "task"),
    "code": ({"code": Digest(bytes([9]) * 32)}, "task code"),
    "code_files": ({"code_files": (("a.py", Digest(bytes([9]) * 32)), ("b/c.py", Digest(bytes(32))))}, "task code"),
    "data": ({"data": Digest(bytes([9]) * 32)}, "data"),
    "data_where": ({"data_where": "https://example.org"}, "data"),
    "data_files": ({"data_files": (("a.bin", Digest(bytes([9]) * 32)), ("b c.bin", Digest(bytes(32))))}, "data"),
    "seed": ({"seed": 1}, "initialisation"),
    "initial_state": ({"initial_state": Digest(bytes([9]) * 32)}, "initialisation"),
    "continues": ({"continues": Digest(bytes([9]) * 32)}, "initialisation"),
    "steps": ({"steps": 11}, "training options"),
    "optimizer": ({"optimizer": "adamw"}, "training options"),
    "rate": ({"rate": 0.1000000000000001}, "training options"),
    "schedule": ({"schedule": "linear"}, "training options"),
    "warmup": ({"warmup": 1}, "training options"),
    "outer": ({"outer": 0.5}, "training options"),
    "parameters.size": (parameters(size=41), "protocol"),
    "parameters.tau": (parameters(tau=0.2), "protocol"),
    "parameters.byzantine": (parameters(byzantine=0), "protocol"),
    "parameters.validators": (parameters(validators=2), "protocol"),
    "parameters.projections": (parameters(projections=8), "protocol"),
    "parameters.beyond_guarantee": (parameters(beyond_guarantee=True), "protocol"),
    "parameters.tau_auto": (parameters(tau_auto=0.5), "protocol"),
    "parameters.tau_least": (parameters(tau_least=0.01), "protocol"),
    "parameters.tau_most": (parameters(tau_most=10.0), "protocol"),
    "parameters.deviation": (parameters(deviation=1e-5), "protocol"),
    "parameters.content_every": (parameters(content_every=16), "protocol"),
    "parameters.probation": (parameters(probation=16), "protocol"),
    "parameters.slots": (parameters(probation=16, slots=2), "protocol"),
    "parameters.code": (parameters(size=4000, code="int8"), "protocol"),
    "parameters.ticket_bits": (parameters(probation=16, ticket_bits=20), "protocol"),
    "parameters.rekey_every": (parameters(rekey_every=500), "protocol"),
    "parameters.local_steps": (parameters(local_steps=4), "protocol"),
    "timeouts.delta": (timeouts(delta=2.5), "timeouts"),
    "timeouts.compute": (timeouts(compute=6.0), "timeouts"),
    "timeouts.bulk": (timeouts(bulk=6.0), "timeouts"),
    "timeouts.memory": (timeouts(memory=1 << 29), "timeouts"),
    "timeouts.stretch": (timeouts(stretch=3.0), "timeouts"),
    "founders.name": (first_founder(name="eve"), "founders"),
    "founders.key": (first_founder(key=KEYS[4]), "founders"),
    "founders.address": (first_founder(address="10.0.0.1:7009"), "founders"),
    "founders.record_key": (first_founder(record_key=KEYS[4]), "founders"),
}


def test_no_field_is_forgotten_here() -> None:
    nested = {"parameters": Parameters, "timeouts": Timeouts, "founders": Founder}
    fields = {field.name for field in dataclasses.fields(Manifest) if field.init and field.compare}
    deep = {f"{name}.{field.name}" for name, kind in nested.items() for field in dataclasses.fields(kind)}
    assert CHANGES.keys() == (fields - nested.keys()) | deep


@pytest.mark.parametrize("field", CHANGES)
def test_another_value_of_any_field_is_another_run_and_its_section_says_so(field: str) -> None:
    changes, section = CHANGES[field]
    other = dataclasses.replace(PLAN, **changes)
    assert other != PLAN
    assert other.run.id != PLAN.run.id
    mine, theirs = PLAN.digests(), other.digests()
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if mine[name] != theirs[name]] == [section]
    again = Manifest.from_bytes(other.to_toml().encode())
    assert again == other
    assert again.run.id == other.run.id
    assert again.digests() == theirs


def test_one_founder_less_is_another_run() -> None:
    less = dataclasses.replace(PLAN, founders=FOUNDERS[1:], **parameters(byzantine=0))
    assert less.run.id != PLAN.run.id


def test_where_the_file_lies_how_it_is_ordered_and_what_comments_say_do_not_matter(tmp_path: Path) -> None:
    text = re.sub(r"#.*\n", "\n", PLAN.to_toml())
    blocks = text.split("[[founder]]")
    path = tmp_path / "other.toml"
    path.write_text("[[founder]]".join([blocks[0], *reversed(blocks[1:])]))
    assert Manifest.load(path) == PLAN
    assert Manifest.load(path).run.id == PLAN.run.id
    assert dataclasses.replace(PLAN, founders=FOUNDERS[::-1]).founders == FOUNDERS


def test_a_key_that_is_left_out_has_its_default() -> None:
    text = PLAN.to_toml()
    for name in (
        "device",
        "one_by_one",
        "where",
        "schedule",
        "warmup",
        "seed",
        "projections",
        "beyond_guarantee",
        "stretch",
    ):
        text = re.sub(rf"(?m)^{name} = .*\n", "", text)
    assert Manifest.from_bytes(text.encode()).run.id == PLAN.run.id


def test_a_whole_number_is_the_same_as_its_fraction() -> None:
    whole = {"rate": 1, **parameters(tau=1), **timeouts(delta=1)}
    fractions = {"rate": 1.0, **parameters(tau=1.0), **timeouts(delta=1.0)}
    assert dataclasses.replace(PLAN, **whole).run.id == dataclasses.replace(PLAN, **fractions).run.id
    text = PLAN.to_toml().replace("delta_s = 2.0", "delta_s = 2")
    assert Manifest.from_bytes(text.encode()).run.id == PLAN.run.id


def test_evidence_says_what_recomputing_a_gradient_needs() -> None:
    described = json.loads(PLAN.run.description)
    assert (described["task"], described["device"], described["one_by_one"]) == (SPEC, "cpu", False)


def test_evidence_for_strangers_does_not_say_where_founders_live() -> None:
    assert all(founder.address not in PLAN.run.description.decode() for founder in FOUNDERS if founder.address)
    assert b'"alice"' in PLAN.run.description


@given(
    tau=st.floats(2.0**-200, 2.0**200),
    rate=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    seed=st.integers(-(2**63), 2**63 - 1),
    where=st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=200).filter(str.isprintable),
)
def test_round_trip(tau: float, rate: float, seed: int, where: str) -> None:
    manifest = dataclasses.replace(PLAN, rate=rate, seed=seed, data_where=where, **parameters(tau=tau))
    again = Manifest.from_bytes(manifest.to_toml().encode())
    assert again == manifest
    assert again.run == manifest.run
