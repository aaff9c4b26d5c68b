"""The page: one file that asks nothing of any other machine, by day and by night, on a desk and on a phone."""

from collections.abc import Sequence

from troth.lab.report.markup import Html, element, joined
from troth.lab.report.sections import Section

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2329; --muted: #5f656e; --line: #dcdfe4; --paper: #fffffe; --tint: #f5f6f8;
  --alarm: #b4322a; --heat-colour: #c4472d; --accent: #1f66ad;
  --sans: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --muted: #9aa2ac; --line: #343a42; --paper: #14171b;
  --tint: #1c2026;  --alarm: #ef7d70; --heat-colour: #c9502f; --accent: #79b4ee; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 var(--sans); }
main { max-width: 78rem; margin: 0 auto; padding: 2.5rem clamp(1rem, 4vw, 3rem) 5rem; }
h1, h2, h3 { line-height: 1.2; font-weight: 650; text-wrap: balance; overflow-wrap: anywhere; }
h1 { font-size: clamp(1.6rem, 4vw, 2.2rem); margin: 0 0 .8rem; letter-spacing: -.015em; }
h2 { font-size: 1.35rem; margin: 3.2rem 0 .4rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.8rem 0 .5rem; }
p { max-width: 46rem; margin: 0 0 .8rem; overflow-wrap: anywhere; }
.summary { font-size: 1.08rem; }
.setting { color: var(--muted); }
.trouble { border-left: 3px solid var(--alarm); padding-left: .8rem; }
.note, figcaption { color: var(--muted); font-size: .85rem; line-height: 1.45; max-width: 52rem; overflow-wrap: anywhere; }
.made { color: var(--muted); font-size: .85rem; margin-top: 1.2rem; }
code { font: .92em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: var(--tint); padding: .1em .35em;
  border-radius: 3px; overflow-wrap: anywhere; }
nav ul, .legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: 0; margin: .6rem 0; }
nav { font-size: .9rem; }
a { color: var(--accent); text-underline-offset: .15em; }
figure { margin: 0 0 1.6rem; }
figcaption { margin-top: .5rem; }
.legend { font-size: .82rem; }
.legend li { display: inline-flex; align-items: center; gap: .4rem; white-space: nowrap; }
.key { width: 30px; height: 8px; }
.key path { fill: none; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: .6rem 1.2rem; }
.panels:has(> :only-child) { grid-template-columns: minmax(0, 34rem); }
.panels svg { display: block; width: 100%; max-width: 34rem; height: auto; }
.scroll { overflow-x: auto; width: fit-content; max-width: 100%; border: 1px solid var(--line); border-radius: 5px; }
.scroll:focus-visible, summary:focus-visible, a:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .84rem; line-height: 1.35; font-variant-numeric: tabular-nums lining-nums; }
th, td { padding: .32rem .7rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
tr:last-child > * { border-bottom: 0; }
thead tr:last-child > * { border-bottom: 1px solid var(--line); }
thead th { font-weight: 600; background: var(--tint); vertical-align: bottom; }
.corner { white-space: nowrap; }
thead th:not(.corner) { white-space: normal; min-width: 4.5rem; max-width: 11rem; }
.heat thead th:not(.corner) { min-width: 0; max-width: 6.2rem; }
.n { text-align: right; }
.heat tbody td { background: color-mix(in srgb, var(--heat-colour) var(--heat, 0%), var(--paper));
  border-left: 1px solid var(--line);  min-width: 3.9rem; }
.heat td.hot { color: #fff; }
.heat th[scope=row], .heat .corner { position: sticky; left: 0; background: var(--tint); font-weight: 500; z-index: 1; }
.heat .plain > * { background: var(--tint); color: var(--muted); font-weight: 400; }
.heat { font-size: .8rem; }
.heat th, .heat td { padding-inline: .5rem; }
.heat .n { position: relative; padding-right: .95rem; }
.heat sup { position: absolute; right: .2rem; top: .5rem; font-size: .8em; line-height: 1; }
.rank { display: block; color: var(--muted); font-weight: 400; }
details { margin: .4rem 0; }
summary { cursor: pointer; font-size: .9rem; color: var(--accent); margin-bottom: .4rem; }
@media (max-width: 40rem) { main { padding-top: 1.4rem; } th, td { padding: .28rem .5rem; }
  .heat th[scope=row] { white-space: normal; max-width: 7.5rem; } }
@media print { .scroll { overflow: visible; border: 0; } nav { display: none; } }
"""
# Nothing is loaded and nothing runs, even if a label had found a way through.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


class Chapter:
    """One sweep's part of the page."""

    def __init__(
        self,
        title: str,
        setting: Sequence[str],
        findings: Sequence[str],
        trouble: Sequence[str],
        made: Html,
        sections: Sequence[Section],
    ) -> None:
        self.title = title
        self._words = [("setting", setting), ("summary", findings), ("trouble", trouble)]
        self._made, self._sections = made, sections

    def html(self, number: int) -> Html:
        names = [f"s{number}-{at}" for at in range(len(self._sections))]
        links = [
            element("li", element("a", section.title, href=f"#{name}"))
            for section, name in zip(self._sections, names, strict=True)
        ]
        words = [element("p", " ".join(some), class_=kind) for kind, some in self._words if some]
        return joined(
            element("h1", self.title, id=f"s{number}"),
            *words,
            self._made,
            element("nav", element("ul", *links), aria_label=f"Sections of {self.title}"),
            *(self._section(section, name) for section, name in zip(self._sections, names, strict=True)),
        )

    @staticmethod
    def _section(section: Section, name: str) -> Html:
        text = [element("p", section.text, class_="note")] if section.text else []
        return element(
            "section", element("h2", section.title, id=name), *text, *(block.html() for block in section.blocks)
        )


def page(title: str, chapters: Sequence[Chapter]) -> str:
    """The whole document."""
    contents = [
        element("li", element("a", chapter.title, href=f"#s{number}")) for number, chapter in enumerate(chapters, 1)
    ]
    return (
        "<!doctype html>\n"
        + element(
            "html",
            element(
                "head",
                element("meta", charset="utf-8"),
                element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
                element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                element("meta", name="color-scheme", content="light dark"),
                element("title", title),
                element("style", Html(_STYLE)),
            ),
            element(
                "body",
                element(
                    "main",
                    *([element("nav", element("ul", *contents), aria_label="Sweeps")] if len(chapters) > 1 else []),
                    *(chapter.html(number) for number, chapter in enumerate(chapters, 1)),
                ),
            ),
            lang="en",
        )
        + "\n"
    )
