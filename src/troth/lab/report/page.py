"""The page: one file that asks nothing of any other machine, by day and by night, on a desk and on a phone."""

import html
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from troth.errors import printable
from troth.lab.report.figures import Picture
from troth.lab.report.tables import Table

_LONG = 24  # rows; a longer table is folded
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>{title}</title><style>
:root {{ --ink: #1f2329; --muted: #5f656e; --line: #dcdfe4; --paper: #fffffe; --tint: #f5f6f8; --alarm: #b4322a; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e4e7eb; --muted: #9aa2ac; --line: #343a42; --paper: #14171b;
  --tint: #1c2026; --alarm: #ef7d70; }} }}
body {{ margin: 0 auto; max-width: 78rem; padding: 2rem clamp(1rem, 4vw, 3rem); background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }}
h2 {{ margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }}
p, figcaption {{ max-width: 52rem; color: var(--muted); font-size: .9rem; }}
.trouble {{ border-left: 3px solid var(--alarm); color: var(--ink); padding-left: 2rem; }}
figure {{ margin: 0 0 1.6rem; }}
img {{ max-width: 100%; height: auto; }}
.scroll {{ overflow-x: auto; width: fit-content; max-width: 100%; border: 1px solid var(--line); }}
table {{ border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .7rem; text-align: left; border-bottom: 1px solid var(--line); overflow-wrap: normal; }}
td {{ white-space: nowrap; }}
thead th {{ background: var(--tint); }}
.n {{ text-align: right; }}
summary {{ cursor: pointer; }}
</style></head><body>
{body}
</body></html>
"""

Block = Picture | Table


@dataclass(frozen=True)
class Chapter:
    """One sweep's part of the page: facts as name and value, what a reader must know first, and sections by title."""

    title: str
    facts: Sequence[tuple[str, str]]
    trouble: Sequence[str]
    sections: Sequence[tuple[str, Sequence[Block]]]

    def html(self) -> str:
        facts = [f"<tr><th scope=row>{_safe(name)}</th><td>{_safe(value)}</td></tr>" for name, value in self.facts]
        trouble = [f"<li>{_safe(one)}</li>" for one in self.trouble]
        parts = [f"<h1>{_safe(self.title)}</h1>", _scrolling(f"<tbody>{''.join(facts)}</tbody>", "What was run")]
        parts += [f'<ul class="trouble">{"".join(trouble)}</ul>'] if trouble else []
        for title, blocks in self.sections:
            parts += [f"<h2>{_safe(title)}</h2>", *map(_block, blocks)]
        return "\n".join(parts)


def page(title: str, chapters: Iterable[Chapter]) -> str:
    """The whole document."""
    return _PAGE.format(title=_safe(title), body="\n".join(chapter.html() for chapter in chapters))


def _block(block: Block) -> str:
    head = f"<h3>{_safe(block.title)}</h3>"
    if isinstance(block, Picture):
        source = f"data:image/png;base64,{b64encode(block.png).decode()}"
        caption = f"<figcaption>{_safe(block.caption)}</figcaption>" if block.caption else ""
        return f'<figure>{head}<img src="{source}" alt="{_safe(block.title)}">{caption}</figure>'
    numeric = block.numeric()
    lines = [_line("th scope=col", [column.title for column in block.columns], numeric)]
    lines += [_line("td", row, numeric) for row in block.cells()]
    table = _scrolling(f"<thead>{lines[0]}</thead><tbody>{''.join(lines[1:])}</tbody>", block.title)
    if len(block.rows) > _LONG or block.folded:
        table = f"<details><summary>{_safe(block.title)}: {len(block.rows)} rows</summary>{table}</details>"
        head = "" if block.folded else head
    return f"{head}<p>{_safe(block.note)}</p>{table}" if block.note and not block.folded else head + table


def _line(tag: str, cells: Sequence[str], numeric: Sequence[bool]) -> str:
    end = tag.partition(" ")[0]
    found = (f"<{tag}{' class=n' * right}>{_safe(cell)}</{end}>" for cell, right in zip(cells, numeric, strict=True))
    return f"<tr>{''.join(found)}</tr>"


def _scrolling(table: str, label: str) -> str:
    """A wide table scrolls by itself, with the keyboard too; the page does not."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{_safe(label)}"><table>{table}</table></div>'


def _safe(text: str) -> str:
    """What a stranger wrote, made safe to look at; line breaks and the spaces that hold a number to its unit are ours."""
    return html.escape(re.sub(r"[^\n\u00a0]+", lambda some: printable(some[0]), text))
