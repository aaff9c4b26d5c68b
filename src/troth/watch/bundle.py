"""The report: the page and a whole run in one file of HTML, which asks for nothing."""

import base64
import gzip
import hashlib
import json
import re

from troth.watch.server import PAGE

PLAIN_BYTES = 64 << 10  # events up to this size stand in the file as they are
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=function |async function |class |const |let )", re.MULTILINE)
_OUTSIDE = re.compile(r'<(?:link rel="(?:stylesheet|modulepreload)"|script)[^>]*(?:></script>|>)\n')


def bundle(events: list[bytes]) -> str:
    """One HTML file with all views of a run; `events` are lines of its stream."""
    style = _text("vendor", "uPlot.min.css") + _text("style.css")
    chart = _text("vendor", "uPlot.iife.min.js")
    app = joined_modules()
    head = "\n".join(
        (
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, chart, app)}">',
            f"<style>{style}</style>",
            f'<script type="application/json" id="run-data">{_packed(events)}</script>',
        )
    )
    # Classic scripts run where they stand, modules once the document is there: the order is that of the page.
    scripts = f'<script>{chart}</script>\n<script type="module">{app}</script>\n'
    page_html = _OUTSIDE.sub("", _text("index.html"))
    return page_html.replace("</head>", f"{head}\n{scripts}</head>")


def joined_modules() -> str:
    """All modules as one, each after those that it imports. They have only named exports, and no two share a name."""
    seen: dict[str, str] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"modules import each other: {' → '.join((*path, name))}"
        if name in seen:
            return
        text = _text("app", name)
        for needed in _IMPORT.findall(text):
            visit(needed, (*path, name))
        seen[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    visit("main.js", ())
    return "".join(f"// {name}\n{text}" for name, text in seen.items())


def _packed(events: list[bytes]) -> str:
    """JSON that no string in it can end: neither the script element nor a line of it."""
    lines = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in events)
    if len(lines) <= PLAIN_BYTES:
        return _inside_script(json.dumps({"lines": lines.decode("utf-8", "replace")}))
    return json.dumps({"gzip": base64.b64encode(gzip.compress(lines, 6, mtime=0)).decode()})


def _inside_script(text: str) -> str:
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")  # json.dumps left only ASCII


def _policy(style: str, *scripts: str) -> str:
    digests = " ".join(map(_digest, scripts))
    allowed = f"script-src {digests}; style-src {_digest(style)}; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(*path: str) -> str:
    return PAGE.joinpath(*path).read_text(encoding="utf-8")
