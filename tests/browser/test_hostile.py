"""Strings of peers: whatever they say, they are text."""

from pathlib import Path

import msgspec
import pytest

from tests.browser import synthetic
from tests.browser.conftest import Open, Serve, Window
from troth.events.kinds import (
    Audit,
    Ban,
    Began,
    Candidate,
    Ended,
    Event,
    KnownPeer,
    Link,
    Noted,
    PhaseTime,
    Stepped,
    Trial,
)
from troth.watch.bundle import bundle

pytestmark = pytest.mark.browser

EVIL = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '"><svg onload=alert(3)>',
    "javascript:alert(4)",
    "<!--<script>",
    "{{constructor.constructor('alert(5)')()}}",
    "\u202egnp.exe\u2066\u2028\u2029\x00\x1b[31m",
    "__proto__",
    "A" * 100_000,
    "http://attacker.example/x.png",
)


def run_of_evil(evils: tuple[str, ...] = EVIL) -> list[Event]:
    """Every string that a peer could have a say in, each of them as bad as can be."""
    peers = tuple(KnownPeer(name=f"{evil}{at}"[:4000], key=evil) for at, evil in enumerate(evils))
    names = [peer.name for peer in peers]
    run: list[Event] = [
        Began(
            source="member", of=40, peers=peers, run=EVIL[0], name=EVIL[1], task=EVIL[2], defence=EVIL[0], me=EVIL[2],
            withstands=2, quorum=6, probation=5, manifest="run.toml; rm -rf '~' <img src=x onerror=alert(6)>",
        ),
        *(Noted(text=evil) for evil in evils),
    ]  # fmt: skip
    for step, evil in enumerate(evils):
        trial = Trial(
            kind=evil, target=names[step], accuser=evil, step=step, verdict="accused", banned=names[step],
            votes=dict.fromkeys(names, "accused"), quorum=6, story=(evil, EVIL[1]), evidence=evil,
        )  # fmt: skip
        run.append(
            Stepped(
                step=step,
                updates=step + 1,
                of=40,
                members=9 - step,
                loss=1.0,
                metrics={evil: 0.5},
                trials=(trial,),
                validators=(names[0],),
                audits=(Audit(names[0], names[1], step),),
                owners=tuple(names),
                banned=(Ban(peer=names[step], reason=evil, evidence="ban-step1-../../etc/passwd.json"),),
                silent=(evil,),
                joined=(evil + "j",),
                candidates=(Candidate(name=evil + "c", worked=1, needed=5),),
                news=(evil,),
                phases=(PhaseTime(phase=evil, began=0, ended=1, last=(evil,)),),
                seconds=1.0,
            )
        )
    return run


def check_nothing_came_of_it(page: Window) -> None:
    look = page.page
    assert look.locator("main img, main script, main iframe, main object, header img").count() == 0
    assert look.evaluate("document.querySelectorAll('[onload], [onerror], [onclick], [style*=url]').length") == 0
    links = look.evaluate("[...document.querySelectorAll('a')].map((link) => link.getAttribute('href'))")
    assert links == ["#main"], "no evidence of ours has such names"
    assert look.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.dialogs == []
    assert look.evaluate("({}).polluted === undefined && Object.keys(Object.prototype).length === 0")


def test_hostile_strings_are_only_text(serve: Serve, window: Open) -> None:
    run = run_of_evil()
    served = serve(*run)
    status = synthetic.status(run, 4)
    links = tuple(Link(peer=evil, connected=False, trouble=evil) for evil in EVIL)
    served.tell(msgspec.structs.replace(status, phase=EVIL[0], unheard=EVIL, waits_for=EVIL[1], links=links))
    page = window()
    page.open(served.url, len(EVIL))
    page.wait("document.querySelectorAll('#network-body tbody tr').length > 5")
    page.wait("document.querySelectorAll('#who-table tbody tr').length > 1")
    page.page.locator("#trials-list details summary").first.click()
    page.page.keyboard.press("g")
    for _ in range(12):
        page.page.keyboard.press("ArrowDown")
    check_nothing_came_of_it(page)
    assert page.elsewhere() == []
    assert "<img src=x onerror=alert(2)>" in page.text("#trials-list")
    assert "\u202e" not in page.page.inner_text("body"), "names cannot turn the text around"


def test_a_command_to_copy_is_one_command(serve: Serve, window: Open) -> None:
    began, *rest = run_of_evil()
    step = rest[-1]
    assert isinstance(began, Began)
    assert isinstance(step, Stepped)
    proof = "ban-step9-peer.json"
    ban = msgspec.structs.replace(step, trials=(), banned=(Ban(peer="x", reason="y", evidence=proof),))
    page = window()
    page.open(serve(began, ban).url, 1)
    command = page.text("#trials-list code")
    assert command == f"troth verify {proof} --run 'run.toml; rm -rf '\\''~'\\'' <img src=x onerror=alert(6)>'"
    assert page.page.locator("#trials-list a").get_attribute("href") == f"/evidence/{proof}"


def test_hostile_strings_in_a_report_are_only_text(window: Open, tmp_path: Path) -> None:
    """Small and large: as they are, and compressed."""
    for size, evils in (("small", tuple(evil for evil in EVIL if len(evil) < 1000)), ("large", EVIL)):
        run = [*run_of_evil(evils), Ended(how="over")]
        lines = [msgspec.json.encode(event) for event in run]
        file = tmp_path / f"{size}.html"
        file.write_text(bundle(lines), encoding="utf-8")
        assert ('>{"gzip"' in file.read_text(encoding="utf-8")) is (size == "large")
        page = window()
        page.open(file.as_uri())
        page.wait("document.querySelectorAll('#who-table tbody tr').length > 0")
        check_nothing_came_of_it(page)
        assert page.requests == [file.as_uri()]


def test_events_that_make_no_sense_are_skipped_and_counted(window: Open, tmp_path: Path) -> None:
    good = [msgspec.json.encode(event) for event in synthetic.events(8, 12)]
    bad = [
        b"{", b"null", b"[]", b"3", b'{"event":"step"}', b'{"event":"step","step":-1}', b'{"event":"step","step":"x"}',
        b'{"event":"surprise"}', b'{"event":"step","step":5.5}', b'{"event":"began","peers":[{"key":"00"}]}',
        b'{"event":"step","step":1e99,"trials":"x"}', b'{"event":"step","step":100,"banned":[{"peer":7}]}',
    ]  # fmt: skip
    odd = [
        b'{"event":"note"}', b'{"event":"note","text":{"a":1}}',
        b'{"event":"step","step":12,"validators":7,"audits":[[1,2],["a","b","c"],null],"metrics":[1],"trials":[7],"votes":3,'
        b'"loss":"NaN","members":-4,"silent":[null,{}],"phases":[{"began":"x"}],"owners":[[]]}',
    ]  # fmt: skip
    mixed = [*good[:5], *bad, *good[5:-1], *odd, good[-1]]
    file = tmp_path / "odd.html"
    file.write_text(bundle(mixed), encoding="utf-8")
    page = window()
    page.open(file.as_uri(), 13)
    page.wait("document.getElementById('state').dataset.state === 'over'")
    assert f"{len(bad)}\u00a0events could not be read" in page.text("#trouble")
    page.wait("document.getElementById('ring-words').textContent.startsWith('Step 12:')")
