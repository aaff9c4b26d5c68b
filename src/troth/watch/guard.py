"""Who may read the page. It says a lot about a run, so other web sites must not get at it through the operator's browser.

Three ways in are shut. A site's script that fetches http://127.0.0.1: the browser names the site (`Origin`, `Sec-Fetch-Site`). A
site whose own name suddenly means 127.0.0.1 (DNS rebinding): the request names that host. Another machine, where the page is
served beyond this one: it needs the token.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from troth.errors import OperatorError

MOST_HEAD = 16 << 10  # bytes of a request
MOST_HEADERS = 64

LEAST_TOKEN = 16
_TOKEN = re.compile(r"[A-Za-z0-9._~-]+")
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class AddressError(OperatorError):
    """An address or a token that the page cannot be served with; the message names the field."""


def new_token() -> str:
    return secrets.token_urlsafe(24)  # 192 bits


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def token_for(host: str, given: str | None) -> str | None:
    """The token to ask for: a new one where other machines could connect and none is given."""
    if given is None:
        return None if is_loopback(host) else new_token()
    if len(given) < LEAST_TOKEN or _TOKEN.fullmatch(given) is None:
        raise AddressError(
            f"token (TROTH_PAGE_TOKEN): at least {LEAST_TOKEN} letters, digits or ._~- are needed, so that nobody guesses it"
        )
    return given


@dataclass(frozen=True)
class Guard:
    """Decides about a request before anything else looks at it."""

    host: str
    port: int
    token: str | None = None

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise AddressError(f"host {self.host}: other machines could connect, so a `token` is needed")

    @property
    def cookie(self) -> str:
        return f"troth-{self.port}"  # cookies of one host are shared by its ports

    def refuses(self, request: Request) -> Response | None:
        """The answer to a request that may not be; None for one that may."""
        if (status := _malformed(request)) is not None:
            return say(status)
        if request.method not in ("GET", "HEAD"):
            return say(HTTPStatus.METHOD_NOT_ALLOWED, "This page is only read.", Allow="GET, HEAD")
        if is_loopback(self.host) and not self._names_us(request.headers.get("host", "")):
            return say(HTTPStatus.MISDIRECTED_REQUEST, "This address is not the page's: open it as it was printed.")
        if self._from_elsewhere(request):
            return say(HTTPStatus.FORBIDDEN, "Other sites may not read this page.")
        return None if self.token is None else self._without_token(request, self.token)

    def _without_token(self, request: Request, token: str) -> Response | None:
        given = request.query_params.get("token") if request.scope["path"] == "/" else None
        if given is None:
            ticket = request.cookies.get(self.cookie, "")
            if hmac.compare_digest(ticket.encode(), _ticket(token).encode()):
                return None
            return say(
                HTTPStatus.UNAUTHORIZED,
                "This page asks for a token: open the whole address as it was printed, ?token=…",
            )
        if not hmac.compare_digest(given.encode(), token.encode()):
            return say(HTTPStatus.UNAUTHORIZED, "This is not the token: open the whole address as it was printed.")
        cookie = f"{self.cookie}={_ticket(token)}; HttpOnly; SameSite=Strict; Path=/"
        # The token leaves the address bar.
        return say(HTTPStatus.SEE_OTHER, "Welcome.", Location="/", Set_Cookie=cookie)

    def _names_us(self, host: str) -> bool:
        names = {*_LOCAL, f"[{self.host}]" if ":" in self.host else self.host}
        return host.lower() in {f"{name}:{self.port}" for name in names} or (self.port == 80 and host.lower() in names)

    def _from_elsewhere(self, request: Request) -> bool:
        """Whether a page of another site asks. Following a link to the page is no harm: the other site does not see it."""
        site, origin = request.headers.get("sec-fetch-site", ""), request.headers.get("origin", "")
        host = request.headers.get("host", "").lower()
        if origin and origin.lower() not in (f"http://{host}", f"https://{host}"):  # the latter through a proxy
            return True
        if site in ("", "same-origin", "none"):
            return False
        opens = (request.headers.get("sec-fetch-mode", ""), request.headers.get("sec-fetch-dest", "")) == (
            "navigate",
            "document",
        )
        return not (opens and request.scope["path"] == "/")


def say(status: HTTPStatus, text: str = "", **headers: str) -> Response:
    """An answer of one line."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return PlainTextResponse(f"{text or status.phrase}\n", status, named)


def _malformed(request: Request) -> HTTPStatus | None:
    """Why a request is none that a browser would send here, though it is HTTP."""
    target, headers = request.scope["raw_path"], request.headers.raw
    size = len(target) + len(request.scope["query_string"]) + sum(len(name) + len(value) for name, value in headers)
    if size > MOST_HEAD or len(headers) > MOST_HEADERS:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    if request.headers.get("content-length", "") not in ("", "0") or "transfer-encoding" in request.headers:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    twice = any(len(request.headers.getlist(name)) > 1 for name in ("host", "origin", "cookie"))  # which would count?
    absolute = not target.startswith(b"/") or target.startswith(b"//")
    return HTTPStatus.BAD_REQUEST if twice or absolute or request.scope["http_version"] not in ("1.0", "1.1") else None


def _ticket(token: str) -> str:
    """What the browser keeps: shows that it had the token, and does not tell it."""
    return hashlib.sha256(b"troth/page ticket/1 " + token.encode()).hexdigest()
