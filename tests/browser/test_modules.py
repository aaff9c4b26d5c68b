"""The page's files, read: what must hold without a browser."""

import base64
import hashlib
import re
from pathlib import Path

import troth.watch
from troth.watch.bundle import bundle, joined_modules

PAGE = Path(troth.watch.__file__).parent / "page"
MODULES = sorted((PAGE / "app").glob("*.js"))
MOST_LINES = 400


def test_modules_can_be_read_in_one_sitting() -> None:
    assert {path.name for path in MODULES if path.read_text().count("\n") > MOST_LINES} == set()


def test_no_module_makes_markup_or_code_of_strings() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\"(?:style|on)|srcdoc"
    )
    assert {
        path.name: forbidden.findall(path.read_text()) for path in MODULES if forbidden.search(path.read_text())
    } == {}


def test_nothing_names_another_machine() -> None:
    """But for SVG's name, which nobody fetches."""
    own = [*MODULES, PAGE / "index.html", PAGE / "style.css"]
    found = {path.name: re.findall(r"(?:https?:)?//[a-z][^\s\"']*\.[a-z]+[^\s\"']*", path.read_text()) for path in own}
    assert {name: names for name, names in found.items() if names} == {"words.js": ["http://www.w3.org/2000/svg"]}


def test_the_page_has_no_inline_script_or_style() -> None:
    html = (PAGE / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", html)
    assert all(" src=" in tag for tag in re.findall(r"<script[^>]*>", html))


def test_all_modules_are_asked_for_at_once() -> None:
    """Else the browser would learn of them one import after the other."""
    html = (PAGE / "index.html").read_text()
    assert re.findall(r'"modulepreload" href="/page/app/([a-z]+\.js)"', html) == [path.name for path in MODULES]


def test_joined_modules_share_no_names() -> None:
    """They run as one script in a report. Every module is part of it, and nothing is left of imports."""
    for path in MODULES:
        assert not re.search(r"^import .*(?: as |\bdefault\b)", path.read_text(), re.MULTILINE), (
            "joined modules have no other names"
        )
    joined = joined_modules()
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", joined, re.MULTILINE)
    assert len(names) == len(set(names))
    assert re.findall(r"^(?:import|export)\b.*", joined, re.MULTILINE) == []
    assert sorted(re.findall(r"^// ([a-z]+\.js)$", joined, re.MULTILINE)) == [path.name for path in MODULES]


def test_the_licence_of_the_chart_library_is_beside_it() -> None:
    vendor = PAGE / "vendor"
    assert {path.name for path in vendor.iterdir()} == {"uPlot.iife.min.js", "uPlot.min.css", "uPlot-LICENSE.txt"}
    assert "The MIT License" in (vendor / "uPlot-LICENSE.txt").read_text()


def test_a_report_allows_its_own_scripts_and_nothing_else() -> None:
    html = bundle([b'{"event":"note","text":"</script>\\u2028<!--"}\n'])
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)[0]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    scripts = re.findall(r"<script(?! type=\"application/json\")[^>]*>(.*?)</script>", html, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert (len(scripts), len(styles)) == (2, 1)
    for text in (*scripts, *styles):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert not re.search(r"<(?:link rel=\"(?!icon)|script src|img|iframe)", html)
    data = re.findall(r'id="run-data">(.*?)</script>', html, re.DOTALL)[0]
    assert "<" not in data
    assert data.isascii()
