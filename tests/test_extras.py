"""Advice on optional parts fits the installation: a clone is told how a clone does it."""

from pathlib import Path

import pytest

from troth import errors


def test_a_clone_is_told_how_a_clone_does_it(tmp_path: Path) -> None:
    clone = tmp_path / "troth"
    assert errors._in_clone(clone, "metrics", clone, clone / ".venv") == ".venv/bin/pip install -e '.[metrics]'"
    elsewhere = errors._in_clone(clone, "metrics", tmp_path, clone / ".venv")
    assert elsewhere == f"{clone}/.venv/bin/pip install -e '{clone}[metrics]'"
    assert errors._in_clone(clone, "libp2p", clone, Path("/usr")) == "python -m pip install -e '.[libp2p]'"


def test_a_clone_is_known_by_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "src" / "troth" / "extras.py"
    module.parent.mkdir(parents=True)
    assert errors._clone_of(module) is None
    (tmp_path / "pyproject.toml").touch()
    assert errors._clone_of(module) == tmp_path.resolve()
    installed = tmp_path / "lib" / "site-packages" / "troth" / "extras.py"
    assert errors._clone_of(installed) is None
    monkeypatch.setattr(errors, "__file__", str(installed))
    assert errors.how_to_install("metrics") == "pip install 'troth[metrics]'"
