"""Checks of a manifest's values: each within its bounds, and fitting together. They raise ManifestError or SpecError."""

from math import isfinite
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from troth.network.manifest.errors import ManifestError, quoted
from troth.network.manifest.toml import MOST_CODE_FILES, MOST_DATA_FILES, MOST_FOUNDERS
from troth.specs import file_of, pick
from troth.training import SCHEDULES

if TYPE_CHECKING:
    from troth.network.manifest.manifest import Manifest

MOST_STEPS = 1_000_000  # rates are a table, one number for each
_MOST_SECONDS = 86_400.0
_MOST_MEMORY = 1 << 40
_MOST_STRETCH = 100.0
_MOST_SIZE = 1 << 36  # parameters


def check_manifest(manifest: "Manifest") -> None:
    _check_text(manifest)
    _check_founders(manifest)
    _check_timeouts(manifest)
    _check_training(manifest)


def least_memory(size: int) -> int:
    """Bytes: honest members send a few times the model (of float32) in a step in which much is disputed."""
    return 16 * size + (1 << 20)


def _check_text(manifest: "Manifest") -> None:
    for field, text, most in (
        ("name", manifest.name, 64),
        ("task.spec", manifest.task, 200),
        ("training.optimizer", manifest.optimizer, 200),
        ("data.where", manifest.data_where, 200),
        *(("a name in task.files", name, 200) for name, _ in manifest.code_files),
        *(("a name in data.files", name, 200) for name, _ in manifest.data_files),
    ):
        if len(text) > most or not text.isprintable():
            raise ManifestError(f"{field} must be one line of at most {most} characters, got {quoted(text)}")
    if len(manifest.data_files) > MOST_DATA_FILES:
        raise ManifestError(f"data.files holds at most {MOST_DATA_FILES:,} files, got {len(manifest.data_files):,}")
    if not manifest.name:
        raise ManifestError("name must not be empty")
    _check_code_files(manifest)
    for field, digest in (("task.code", manifest.code), ("data.digest", manifest.data), ("nonce", manifest.nonce)):
        if len(digest) != 32:
            raise ManifestError(f"{field} must have 32 bytes (64 hexadecimal digits), got {len(digest)}")


def _check_code_files(manifest: "Manifest") -> None:
    """A manifest from somebody else must not make us run, or read, a file from anywhere on this machine."""
    file, names = file_of(manifest.task), [name for name, _ in manifest.code_files]
    if len(names) > MOST_CODE_FILES or len(set(names)) < len(names):
        raise ManifestError(f"task.files holds at most {MOST_CODE_FILES} files, each once")
    for field, name in (*([] if file is None else [("task.spec", file)]), *(("task.files", name) for name in names)):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or path.suffix != ".py" or path.as_posix() != name:
            raise ManifestError(
                f"{field} names {quoted(name)}: the task's file must lie beside the manifest, as plain *.py"
            )
        if not path.is_relative_to(PurePosixPath(file or "").parent):
            raise ManifestError(f"{field} names {quoted(name)}, which does not lie in the folder of the task's file")


def _check_founders(manifest: "Manifest") -> None:
    founders = manifest.founders
    if not 1 <= len(founders) <= MOST_FOUNDERS:
        raise ManifestError(f"a run has from 1 to {MOST_FOUNDERS} founders, got {len(founders)}")
    for field, values in (
        ("key", [one.hex() for founder in founders for one in (founder.key, founder.record_key) if one is not None]),
        ("name", [founder.name.lower() for founder in founders]),
        ("address", [founder.address for founder in founders if founder.address]),
    ):
        if repeated := sorted({value for value in values if values.count(value) > 1}):
            raise ManifestError(f"two founders have the {field} {repeated[0]}: everybody needs their own")


def _check_timeouts(manifest: "Manifest") -> None:
    timeouts = manifest.timeouts
    for field, seconds in (
        ("delta_s", timeouts.delta),
        ("compute_s", timeouts.compute),
        ("bulk_s", timeouts.bulk),
    ):
        if not 0 < seconds <= _MOST_SECONDS:
            raise ManifestError(f"timeouts.{field} must be above 0 and at most {_MOST_SECONDS:g}, got {seconds:g}")
    if not 1 <= timeouts.stretch <= _MOST_STRETCH:
        raise ManifestError(f"timeouts.stretch must be from 1 to {_MOST_STRETCH:g}, got {timeouts.stretch:g}")
    least = least_memory(manifest.parameters.size)
    if not least <= timeouts.memory <= _MOST_MEMORY:
        raise ManifestError(
            f"timeouts.memory_bytes must be from {least:,} (a few times the model) to {_MOST_MEMORY:,}, got {timeouts.memory:,}"
        )


def _check_training(manifest: "Manifest") -> None:
    if not 1 <= manifest.steps <= MOST_STEPS:
        raise ManifestError(f"training.steps must be from 1 to {MOST_STEPS:,}, got {manifest.steps:,}")
    if not (manifest.rate > 0 and isfinite(manifest.rate)):
        raise ManifestError(f"training.rate must be a positive number, got {manifest.rate:g}")
    if not 0 <= manifest.warmup <= MOST_STEPS:
        raise ManifestError(f"training.warmup must be from 0 to {MOST_STEPS:,}, got {manifest.warmup:,}")
    if not -(2**63) <= manifest.seed < 2**63:
        raise ManifestError(f"training.seed must fit in 64 bits, got {manifest.seed}")
    if manifest.parameters.size > _MOST_SIZE:
        raise ManifestError(f"protocol.size must be at most {_MOST_SIZE:,}, got {manifest.parameters.size:,}")
    if manifest.device not in ("cpu", "cuda"):
        raise ManifestError(f"task.device is cpu or cuda, got {quoted(manifest.device)}")
    pick(SCHEDULES, manifest.schedule, "schedule")
    manifest.make_optimizer()
