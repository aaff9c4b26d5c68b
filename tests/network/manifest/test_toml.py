"""`run.toml` is read strictly and within bounds: it comes from somebody else."""

import re
import secrets
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.network.manifest.plans import FOUNDERS, KEYS, PLAN, SPEC
from troth.network.manifest.manifest import Founder, Manifest
from troth.network.manifest.toml import ManifestError

HOSTILE = ["nan", "inf", "-1", "0", "1e308", "-0.0", "2e-308", "true", "1979-05-27", "[]", "[[]]", "{}", "'x:y=z'"]
HOSTILE += ['""', '":"', '"a.py"', '"sgd:="', '"\\u0000"', '"\\u001b"', "'''\n'''"]
HOSTILE += ["9" * 400, "9" * 900, "0x" + "f" * 900, "18446744073709551616"]


@pytest.mark.parametrize("section", ["", "task", "data", "training", "protocol", "timeouts", "founder"])
def test_an_unknown_key_is_named(section: str) -> None:
    heading = {"": "format = 3", "founder": "[[founder]]"}.get(section, f"[{section}]")
    text = PLAN.to_toml().replace(heading, f"{heading}\nextra = 1", 1)
    with pytest.raises(ManifestError, match=rf"^{section}.*unknown key `extra`"):
        Manifest.from_bytes(text.encode())


@pytest.mark.parametrize("key", ["format", "nonce", "spec", "code", "digest", "steps", "size", "tau", "delta_s"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ManifestError, match=f"missing key `{key}`"):
        Manifest.from_bytes(re.sub(rf"(?m)^{key} = .*\n", "", PLAN.to_toml()).encode())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "format = 3",
            "format = 2",
            "written in format '2', this version of Troth reads format 3: write a new manifest",
        ),
        ("steps = 10", "steps = 10.0", "training.steps: Expected `int`, got `float`"),
        ("steps = 10", "steps = 0", "training.steps must be from 1 to 1,000,000, got 0"),
        ("rate = 0.1", "rate = nan", "training.rate must be a positive number, got nan"),
        ("warmup = 0", "outer = 0", "training.outer must be a positive number, got 0"),
        ("projections = 16", "local_steps = 0", "`local_steps` must be 1 to 1,000, got 0"),
        ("projections = 16", "local_steps = 2\ndeviation = 0.001", "use `local_steps` 1, or machines of one class"),
        ('"cosine"', '"cosin"', "unknown schedule 'cosin': did you mean cosine"),
        ("sgd:momentum=0.5", "sgd:momentum=2", "'sgd:momentum=2': momentum must"),
        ("tau = 0.1", "tau = inf", "tau must be a positive number"),
        ("byzantine = 1", "byzantine = 2", "2 liars among 4 peers with 1 validators: the guarantee needs"),
        ("size = 40", "size = 3", "a model of 3 parameters cannot be split among 4"),
        ("delta_s = 2.0", "delta_s = 0", "timeouts.delta_s must be above 0 and at most 86400, got 0"),
        ("delta_s = 2.0", "delta_s = nan", "timeouts.delta_s must be above 0"),
        ("stretch = 4.0", "stretch = 0.5", "timeouts.stretch must be from 1 to 100, got 0.5"),
        ("stretch = 4.0", "stretch = 101", "timeouts.stretch must be from 1 to 100, got 101"),
        ("stretch = 4.0", "stretch = inf", "timeouts.stretch must be from 1 to 100, got inf"),
        ("stretch = 4.0", "stretch = nan", "timeouts.stretch must be from 1 to 100, got nan"),
        ("memory_bytes = 268435456", "memory_bytes = 1000", "timeouts.memory_bytes must be from 1,049,216"),
        (KEYS[0].hex(), KEYS[0].hex().upper(), "key: Expected 64 hexadecimal digits"),
        (KEYS[0].hex(), "00" * 32, "the key of founder alice is no Ed25519 public key"),
        (KEYS[0].hex(), KEYS[1].hex(), f"two founders have the key {KEYS[1].hex()}"),
        ('"bob"', '"Alice"', "two founders have the name alice"),
        ('"bob"', '"b b"', "a founder's name has 1 to 32 letters"),
        ("peer.example.org:7002", "10.0.0.1:7001", "two founders have the address 10.0.0.1:7001"),
        (SPEC, "../mine.py", "task.spec names '../mine.py': the task's file must lie beside the manifest"),
        (SPEC, "/tmp/mine.py", "task.spec names '/tmp/mine.py'"),
        ('"a bowl"', '"a\\u001b[2Jbowl"', "name must be one line of at most 64 characters, got 'a?"),
        ('"a bowl"', '""', "name must not be empty"),
        ("[task]", "[task", "not TOML: "),
    ],
)
def test_a_wrong_value_is_named(old: str, new: str, message: str) -> None:
    text = PLAN.to_toml()
    assert old in text
    with pytest.raises(ManifestError, match=re.escape(message)):
        Manifest.from_bytes(text.replace(old, new, 1).encode())


@pytest.mark.parametrize(
    "address",
    ["host", "host:", ":7001", "host:0", "host:65536", "ho st:1", "::1:7001", "a@b:1", "[::1]", "h:7001\n"],
)
def test_addresses_are_host_and_port(address: str) -> None:
    with pytest.raises(ManifestError, match="founder alice must be"):
        Founder("alice", KEYS[0], address)


def test_endpoints() -> None:
    assert [founder.endpoint for founder in FOUNDERS] == [
        ("10.0.0.1", 7001),
        ("peer.example.org", 7002),
        ("2001:db8::1", 7003),
        None,
    ]


def test_size_lines_and_founders_are_bounded() -> None:
    for raw, message in (
        (b"#\n" * (1 << 19) + b"#", "larger than 1,048,576 bytes"),
        (b"a." * 600 + b"a = 1", "line 1: a key has more than 16 dots: no manifest has such a key"),
        (b"a = '" + b"a" * 4096 + b"'", "line 1 has more than 4,096 bytes: break it into several"),
        (b"\xff", "not a text in UTF-8"),
        (b"a = " + b"[\n" * 10_000, "nested too deeply: no manifest is"),
    ):
        with pytest.raises(ManifestError, match=message):
            Manifest.from_bytes(raw)
    many = [f'[[founder]]\nname = "n{k}"\nkey = "{secrets.token_hex(32)}"\n' for k in range(257)]
    text = PLAN.to_toml().split("[[founder]]")[0] + "".join(many)
    with pytest.raises(ManifestError, match="founder: Expected `array` of length <= 256"):
        Manifest.from_bytes(text.encode())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot read the manifest"):
        Manifest.load(tmp_path / "run.toml")
    (tmp_path / "run.toml").write_text("x = 1")
    with pytest.raises(ManifestError, match=r"run\.toml: unknown key `x`"):
        Manifest.load(tmp_path / "run.toml")


@given(st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_bytes(raw)


@given(
    line=st.integers(0, PLAN.to_toml().count("\n")),
    value=st.sampled_from(HOSTILE),
)
def test_any_value_anywhere(line: int, value: str) -> None:
    lines = PLAN.to_toml().split("\n")
    lines[line] = re.sub(r"=.*", lambda _: f"= {value}", lines[line])
    _read_or_refused("\n".join(lines).encode())


@given(at=st.integers(0, len(PLAN.to_toml())), gone=st.integers(0, 40), there=st.binary(max_size=8))
def test_any_damage(at: int, gone: int, there: bytes) -> None:
    raw = PLAN.to_toml().encode()
    _read_or_refused(raw[:at] + there + raw[at + gone :])


def _read_or_refused(raw: bytes) -> None:
    try:
        manifest = Manifest.from_bytes(raw)
    except ManifestError as error:
        refused = str(error)
    else:
        refused = ""
        assert Manifest.from_bytes(manifest.to_toml().encode()).run.id == manifest.run.id
    assert refused.isprintable()
