"""A run of six, one of them a liar that was banned, and a copy of its witness's folder for every test."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.audit.folders import witnessed
from tests.audit.forger import Forger
from troth.audit.folder import AuditOptions, audit
from troth.audit.report import AuditReport
from troth.network.manifest.manifest import Manifest
from troth.workshop.simulation import Scenario

SEED = 3
SCENARIO = Scenario(
    task="quadratic:dimension=24", peers=6, byzantine=1, attack="sign-flip", attack_start=3, steps=10, seed=SEED
)
QUICK = AuditOptions(sample=0)  # signatures, records and files only

Audit = Callable[..., AuditReport]


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`peer` and `run.toml`; not to be changed."""
    folder = tmp_path_factory.mktemp("original")
    witnessed(folder / "peer", SCENARIO)
    return folder


@pytest.fixture
def peer(original: Path, tmp_path: Path) -> Path:
    """A copy of the witness's folder."""
    shutil.copytree(original / "peer", tmp_path / "peer")
    shutil.copy(original / "run.toml", tmp_path / "run.toml")
    return tmp_path / "peer"


@pytest.fixture
def manifest(peer: Path) -> Manifest:
    return Manifest.load(peer.parent / "run.toml")


@pytest.fixture
def forger(peer: Path, manifest: Manifest) -> Forger:
    return Forger(peer, manifest, SEED)


@pytest.fixture
def audited(peer: Path, manifest: Manifest) -> Audit:
    return lambda options=QUICK: audit(peer, manifest, options)
