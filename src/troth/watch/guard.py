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

from troth.errors import OperatorError
from troth.watch.http import Request, Response, say

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
        if is_loopback(self.host) and not self._names_us(request.header("host")):
            return say(HTTPStatus.MISDIRECTED_REQUEST, "This address is not the page's: open it as it was printed.")
        if self._from_elsewhere(request):
            return say(HTTPStatus.FORBIDDEN, "Other sites may not read this page.")
        if self.token is None:
            return None
        given = request.query.get("token") if request.path == "/" else None
        if given is None:
            if self._has_cookie(request):
                return None
            return say(
                HTTPStatus.UNAUTHORIZED,
                "This page asks for a token: open the whole address as it was printed, ?token=…",
            )
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return say(HTTPStatus.UNAUTHORIZED, "This is not the token: open the whole address as it was printed.")
        cookie = f"{self.cookie}={_ticket(self.token)}; HttpOnly; SameSite=Strict; Path=/"
        return say(
            HTTPStatus.SEE_OTHER, "Welcome.", Location="/", Set_Cookie=cookie
        )  # the token leaves the address bar

    def _names_us(self, host: str) -> bool:
        names = {*_LOCAL, f"[{self.host}]" if ":" in self.host else self.host}
        return host.lower() in {f"{name}:{self.port}" for name in names} or (self.port == 80 and host.lower() in names)

    def _from_elsewhere(self, request: Request) -> bool:
        """Whether a page of another site asks. Following a link to the page is no harm: the other site does not see it."""
        site, origin = request.header("sec-fetch-site"), request.header("origin")
        host = request.header("host").lower()
        if origin and origin.lower() not in (f"http://{host}", f"https://{host}"):  # the latter through a proxy
            return True
        if site in ("", "same-origin", "none"):
            return False
        opens = request.header("sec-fetch-mode") == "navigate" and request.header("sec-fetch-dest") == "document"
        return not (opens and request.path == "/")

    def _has_cookie(self, request: Request) -> bool:
        assert self.token is not None
        for pair in request.header("cookie").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self.cookie and hmac.compare_digest(value.encode("latin-1"), _ticket(self.token).encode()):
                return True
        return False


def _ticket(token: str) -> str:
    """What the browser keeps: shows that it had the token, and does not tell it."""
    return hashlib.sha256(b"troth/page ticket/1 " + token.encode()).hexdigest()
