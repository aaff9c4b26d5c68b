"""Other web sites, other machines, and viewers that misbehave: they learn nothing, and cost little, and others see everything."""

import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.watch.clients import answer, read_all, request
from tests.watch.conftest import Serve
from tests.watch.made_events import began, stepped, write
from troth.events.kinds import Noted
from troth.watch.folder import RunFolder
from troth.watch.server import AddressError, Guard, PageServer, is_loopback

TOKEN = "0123456789abcdefghij"


# Other sites in the operator's browser


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "",
        "127.0.0.1:{port}@evil",
        "[::1",
    ],
)
def test_a_site_whose_name_suddenly_means_this_machine_gets_nothing(serve: Serve, tmp_path: Path, host: str) -> None:
    write(tmp_path, began(name="secret"))
    page = serve()
    for path in ("/", "/events", "/step?n=0", "/page/app/main.js"):
        got = answer(page.raw(request(path, host=host.format(port=page.server.port))))
        assert got.status == 421
        assert b"secret" not in got.content


def test_a_request_without_a_host_or_with_two(serve: Serve) -> None:
    page = serve()
    assert answer(page.raw(b"GET / HTTP/1.1\r\n\r\n")).status == 400
    assert answer(page.raw(b"GET / HTTP/1.0\r\n\r\n")).status == 421
    assert answer(page.raw(f"GET / HTTP/1.1\r\nHost: {page.host}\r\nHost: evil.example\r\n\r\n".encode())).status == 400


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"])
def test_names_of_this_machine_are_right(serve: Serve, name: str) -> None:
    page = serve()
    assert page.ask("/", host=f"{name}:{page.server.port}").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors", "Sec_Fetch_Dest": "empty"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors", "Sec_Fetch_Dest": "empty"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
)
def test_a_script_of_another_site_gets_nothing(serve: Serve, tmp_path: Path, headers: dict[str, str]) -> None:
    write(tmp_path, began())
    page = serve()
    for path in ("/", "/events", "/step?n=0", "/evidence/ban-step1-a.json"):
        got = page.ask(path, **headers)
        assert got.status == 403
        assert "access-control-allow-origin" not in got.headers


def test_a_link_to_the_page_may_be_followed_and_no_other(serve: Serve) -> None:
    page = serve()
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert page.ask("/", **link).status == 200
    assert page.ask("/evidence/ban-step1-a.json", **link).status == 403


def test_the_pages_own_scripts_may_ask(serve: Serve) -> None:
    page = serve()
    own = {"Origin": f"http://{page.host}", "Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "cors"}
    assert page.ask("/", **own).status == 200


# Tokens


def test_a_token_opens_the_page_and_leaves_the_address_bar(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, began())
    page = serve(token=TOKEN)
    assert page.server.address.endswith(f"/?token={TOKEN}")
    for path in (
        "/",
        "/events",
        "/step?n=0",
        "/page/app/main.js",
        "/?token=wrong",
        "/?token=",
        f"/events?token={TOKEN}",
    ):
        got = page.ask(path)
        assert (got.status, b"token" in got.content) == (401, True)
    welcome = page.ask(f"/?token={TOKEN}")
    assert (welcome.status, welcome.headers["location"]) == (303, "/")
    cookie, *attributes = welcome.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict"} <= set(attributes)
    assert TOKEN not in cookie
    assert page.ask("/", Cookie=f"other=1; {cookie}").status == 200
    assert page.ask("/events", "HEAD", Cookie=cookie).status == 200
    assert page.ask("/", Cookie=cookie[:-1] + ("0" if cookie[-1] != "0" else "1")).status == 401
    assert page.ask("/?token=wrong", Cookie=cookie).status == 401
    assert page.ask("/", Cookie=f"{page.server.guard.cookie}={TOKEN}").status == 401


def test_beyond_this_machine_there_is_always_a_token(tmp_path: Path) -> None:
    with (
        PageServer(RunFolder(tmp_path), host="0.0.0.0", port=0) as first,
        PageServer(RunFolder(tmp_path), host="0.0.0.0", port=0) as second,
    ):
        tokens = [one.guard.token for one in (first, second)]
        assert all(token is not None and re.fullmatch(r"[A-Za-z0-9_-]{32}", token) for token in tokens)
        assert tokens[0] != tokens[1]
    with pytest.raises(AddressError, match="token"):
        Guard("0.0.0.0", 8420)
    with pytest.raises(AddressError, match="token"):
        PageServer(RunFolder(tmp_path), host="0.0.0.0", port=0, token="short")
    with pytest.raises(AddressError, match="token"):
        PageServer(RunFolder(tmp_path), port=0, token="with\r\nSet-Cookie: a=b, a header")


def test_which_hosts_are_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "", "127.0.0.1.evil.example")))


# Requests that are none


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "BREW"])
def test_it_is_only_read(serve: Serve, method: str) -> None:
    got = serve().ask("/", method)
    assert (got.status, got.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.long
@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n folded: x\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA\x00: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\rb: c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: a\r\nOrigin: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nCookie: a=b\r\nCookie: a=c\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET //[ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 100 + b"\r\n", 431),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET /?" + b"a=1&" * 5_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01" * 10 + b"\r\n\r\n", 400),  # TLS
    ],
)
def test_nonsense_is_answered_and_harms_nobody(serve: Serve, raw: bytes, status: int) -> None:
    page = serve()
    got = page.raw(raw)
    assert got == b"" or answer(got).status == status  # closing with bytes unread may cost the answer
    assert page.ask("/").status == 200


def test_headers_without_end_are_cut_off(serve: Serve) -> None:
    page = serve()
    with page.connect() as connection, pytest.raises(OSError):
        connection.sendall((b"A: " + b"b" * 1000 + b"\r\n") * 20_000)
    assert page.ask("/").status == 200


# Viewers that cost too much


def test_a_client_that_sends_a_byte_now_and_then_is_dropped(serve: Serve) -> None:
    page = serve(read_s=0.5)
    began_at = time.monotonic()
    with page.connect() as connection:
        try:
            for byte in b"GET / HTTP/1.1\r\n" * 100:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
        except OSError:
            pass
        assert time.monotonic() - began_at < 5.0
        assert connection.recv(10) == b"" if not _reset(connection) else True


def _reset(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def test_silent_connections_give_way_to_those_who_ask(serve: Serve) -> None:
    page = serve(connections=8, read_s=60.0)
    silent = [page.connect() for _ in range(40)]
    before = threading.active_count()
    assert page.ask("/").status == 200
    assert before <= 8 + 10
    for one in silent:
        one.close()


def test_more_streams_than_allowed_are_refused_and_the_page_still_works(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, began())
    page = serve(streams=3)
    viewers = [page.stream() for _ in range(3)]
    assert [one.head.status for one in viewers] == [200] * 3
    busy = page.ask("/events")
    assert (busy.status, busy.headers["retry-after"]) == (503, "5")
    assert page.ask("/").status == 200
    viewers[0].close()
    until = time.monotonic() + 10.0
    while (again := page.stream()).head.status != 200:  # its place is free as soon as it has left
        assert time.monotonic() < until
        again.close()
    for one in (*viewers[1:], again):
        one.close()


def test_connections_beyond_the_limit_are_told_so(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, began())
    page = serve(connections=4, streams=4)
    viewers = [page.stream() for _ in range(4)]
    for viewer in viewers:
        viewer.events(1)
    with page.connect() as connection:
        assert answer(read_all(connection)).status == 503
    for viewer in viewers:
        viewer.close()


@pytest.mark.long
def test_a_viewer_that_stops_reading_is_dropped_and_the_others_see_everything(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, began())
    page = serve(write_s=4.0, streams=4)
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.connect(("127.0.0.1", page.server.port))
    stalled.sendall(request("/events", host=page.host))
    others = [page.stream() for _ in range(3)]
    long = "x" * 100_000
    for number in range(200):  # 20 MB: far more than buffers hold
        write(tmp_path, Noted(text=f"{number} {long}"), fresh=False)
    with ThreadPoolExecutor(3) as readers:  # all at a time: one that waits for its turn would be a stalled one, too
        for told in readers.map(lambda other: other.events(201), others):
            assert [one["text"].split()[0] for one in told[1:]] == [str(number) for number in range(200)]
    until = time.monotonic() + 30.0
    while (fourth := page.stream()).head.status != 200:  # the stalled one's place is free again
        assert time.monotonic() < until, "the stalled viewer still has its place"
        fourth.close()
        time.sleep(0.1)
    for one in (*others, fourth):
        one.close()
    stalled.close()


@pytest.mark.long
def test_a_download_that_stalls_or_crawls_is_dropped(serve: Serve, tmp_path: Path) -> None:
    name = "ban-step7-mallory.json"
    (tmp_path / "evidence").mkdir()
    with (tmp_path / "evidence" / name).open("wb") as file:
        file.truncate(60 << 20)  # far more than buffers hold
    for limits, crawls in (({"write_s": 0.5}, False), ({"answer_s": 0.5}, True)):
        page = serve(connections=1, **limits)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", page.server.port))
            slow.sendall(request(f"/evidence/{name}", host=page.host))
            assert slow.recv(100), "it has a place"
            slow.settimeout(0.02)
            until = time.monotonic() + 20.0
            while (got := page.raw(request("/", host=page.host))) == b"" or answer(got).status != 200:
                assert time.monotonic() < until, "it still has its place"
                with suppress(OSError):
                    _ = crawls and slow.recv(1 << 12)


def test_a_viewer_may_come_and_go_many_times(serve: Serve, tmp_path: Path) -> None:
    """Reloading a page leaves streams behind that nobody reads: their places must be free at once, also in a quiet run."""
    write(tmp_path, began(), stepped(0))
    page = serve(streams=2)
    for _ in range(12):
        until = time.monotonic() + 10.0
        while (viewer := page.stream()).head.status != 200:
            assert time.monotonic() < until
            viewer.close()
        viewer.events(2)
        viewer.close()
