"""The sections of a report, in order. One more is one more function: it takes the study, and returns a section or None.

A caller adds sections of its own by `write_report(..., extra=[...])`: that is how fits against theory come in.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from troth.lab.report.curves import axis_pictures, curve_pictures
from troth.lab.report.heat import heat_maps, reading_help
from troth.lab.report.markup import Html
from troth.lab.report.measures import (
    ban_table,
    cost_table,
    damage_table,
    expected_table,
    failed_table,
    final_table,
    lost_table,
    paired_table,
)
from troth.lab.report.study import Study


class Block(Protocol):
    """A part of a section: `Table`, `Picture`, `HeatMap`, or one of a caller's own."""

    def html(self) -> Html: ...

    def files(self) -> dict[str, bytes]:
        """Contents by path, `figures/…` or `tables/…`."""
        ...


@dataclass(frozen=True)
class Section:
    """A heading, a paragraph under it where there is something to say, and what follows."""

    title: str
    text: str
    blocks: tuple[Block, ...]


SectionBuilder = Callable[[Study], Section | None]


def sections(study: Study, extra: Iterable[SectionBuilder] = ()) -> list[Section]:
    """All that have something to show."""
    builders = (*(SECTIONS if study.runs else ()), *extra, _failed)
    return [section for builder in builders if (section := builder(study)) is not None]


def _heat(study: Study) -> Section | None:
    return _section("Who withstands what", reading_help(study), heat_maps(study))


def _published(study: Study) -> Section | None:
    return _section("Against published figures", "", [expected_table(study)])


def _pair(study: Study) -> Section | None:
    return _section("Two defences side by side", "", [paired_table(study)])


def _curves(study: Study) -> Section | None:
    pictures, left_out = curve_pictures(study)
    text = f"{left_out} panels more are left out here; the tables have their numbers." if left_out else ""
    return _section("Curves", text, pictures)


def _axes(study: Study) -> Section | None:
    return _section("Over numbers", "", axis_pictures(study))


def _tables(study: Study) -> Section | None:
    builders = (lost_table, ban_table, damage_table, cost_table, final_table)
    return _section("Tables", "", [builder(study) for builder in builders])


def _failed(study: Study) -> Section | None:
    return _section("What failed", "", [failed_table(study)])


def _section(title: str, text: str, blocks: Iterable[Block | None]) -> Section | None:
    found = tuple(block for block in blocks if block is not None)
    return Section(title, text, found) if found else None


SECTIONS: tuple[SectionBuilder, ...] = (_heat, _published, _pair, _curves, _axes, _tables)
