"""The map in docs/read-the-code.md shows every room of the house, and every file that it names is there."""

import re
from pathlib import Path

import troth

SOURCE = Path(troth.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs/read-the-code.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([a-z0-9_/]+)` \| (.+) \| `([A-Za-z0-9_/.]+)` \|$", re.MULTILINE)


def packages() -> set[str]:
    found = {file.parent.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("__init__.py")}
    return found - {"."}


def test_the_map_shows_every_room_of_the_house_and_of_the_protocol() -> None:
    rows = [package for package, _, _ in ROW.findall(PAGE)]
    assert len(rows) == len(set(rows))
    assert set(rows) <= packages()
    rooms = {
        package for package in packages() if package.removeprefix("protocol/").removeprefix("workshop/").count("/") == 0
    }
    assert rooms <= set(rows)


def test_every_package_says_where_to_start_with_a_file_that_exists() -> None:
    for package, _, start in ROW.findall(PAGE):
        assert (SOURCE / start).is_file(), start
        assert start.startswith(f"{package}/"), start


def test_every_file_that_is_named_with_its_folder_exists() -> None:
    named = set(re.findall(r"`((?:[a-z0-9_]+/)+[A-Za-z0-9_]+\.(?:py|md))`", PAGE))
    assert len(named) > 20
    known = {file.relative_to(SOURCE.parent).as_posix() for file in SOURCE.rglob("*.*")}
    missing = {name for name in named if not any(file.endswith(f"/{name}") or file == name for file in known)}
    assert not missing
