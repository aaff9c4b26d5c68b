"""HTML, put together by one function, so that escaping happens in one place: labels may come from a hostile file."""

import html
import re

from troth.errors import printable

_TAG = re.compile(r"[a-z][a-z0-9]*")
_VOID = frozenset(("br", "meta", "col"))


class Html(str):
    """Text that is HTML already. Only `element`, `joined` and `inline_svg` make it."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | None) -> Html:
    """An element. Children that are not `Html` are escaped, attributes always; `class_` is `class`, `aria_label` `aria-label`."""
    assert _TAG.fullmatch(tag)
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(printable(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{written}>" if tag in _VOID else f"<{tag}{written}>{joined(*children)}</{tag}>")


def joined(*children: str) -> Html:
    return Html("".join(child if isinstance(child, Html) else html.escape(_shown(child)) for child in children))


def inline_svg(svg: bytes, alt: str, inks: dict[str, str]) -> Html:
    """A drawing of matplotlib's (which escapes its texts) for use within the page: colours from the page, no ids of groups."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r"font: ([^'\";]*)'[^\"]*?(?=;|\")", r"font: \1var(--sans)", text)
    for colour, ink in inks.items():
        text = text.replace(colour, ink)
    head = f'<svg role="img" aria-label="{html.escape(printable(alt))}"'
    text = re.sub(r'<svg width="[^"]*" height="[^"]*"', lambda _: head, text, count=1)
    return Html(re.sub(r"\s*\n\s*", "\n", text).strip())


def _shown(text: str) -> str:
    """What a stranger wrote, made safe to look at; line breaks and the spaces that hold a number to its unit are ours."""
    return re.sub(r"[^\n\u00a0]+", lambda some: printable(some[0]), text)
