"""A run under way: what happens appears, and only what matters is announced."""

import msgspec
import pytest

from tests.browser import synthetic
from tests.browser.conftest import Open, Serve
from troth.events.kinds import Began, Ended, Event, Stepped

pytestmark = pytest.mark.browser


def split(run: list[Event], step: int) -> tuple[list[Event], list[Event]]:
    """Events before a step, and from it on."""
    at = next(number for number, event in enumerate(run) if isinstance(event, Stepped) and event.step == step)
    return run[:at], run[at:]


def first_ban(run: list[Event]) -> Stepped:
    return next(event for event in run if isinstance(event, Stepped) and event.banned)


def test_steps_arrive_and_a_ban_is_told(serve: Serve, window: Open) -> None:
    run = list(synthetic.events(16, 60, ended=False))
    ban = first_ban(run)
    before, after = split(run, ban.step)
    served = serve(*before)
    page = window()
    page.open(served.url, ban.step)
    assert page.text("#state-word") == "live"
    assert page.text("#trials-list") == "Nobody has been accused so far."
    assert page.page.locator("#announce").inner_text() == ""

    page.page.evaluate(
        """() => { window.heard = []; new MutationObserver(() => heard.push(document.getElementById("announce").textContent))
        .observe(document.getElementById("announce"), {childList: true, characterData: true, subtree: true}); }"""
    )
    served.add(*after)
    page.wait("document.getElementById('slider').max === '59'")
    guilty = ban.banned[0].peer
    newest = page.page.locator("#trials-list article").last
    assert f"{guilty} banned" in newest.locator("h3").inner_text()
    assert f"troth verify {ban.banned[0].evidence} --run run.toml" in page.page.locator("#trials-list").inner_text()
    heard = page.page.evaluate("heard")
    assert heard, "a ban must be announced"
    assert all("Banned" in words for words in heard)
    assert len(heard) < 10, "steps are not announced"


def test_each_figure_of_the_head_is_the_events(serve: Serve, window: Open) -> None:
    run = list(synthetic.events(16, 60, ended=False))
    last = run[-1]
    assert isinstance(last, Stepped)
    page = window()
    page.open(serve(*run).url, 60)
    words = page.text("#figures").split()
    assert f"{last.updates}" in words
    assert f"{last.members}" in words
    assert f"{last.withstands} liars" in page.text("#figures").replace("\u00a0", " ")
    assert f"{last.loss:.3f}" in words


def test_the_present_is_told_while_a_member_runs(serve: Serve, window: Open) -> None:
    run = list(synthetic.events(8, 20, ended=False))
    served = serve(*run)
    served.tell(synthetic.status(run, 8))
    page = window()
    page.open(served.url, 20)
    page.wait("!document.getElementById('now').hidden")
    assert "Now in step 20" in page.text("#now")
    assert "peer-003 and peer-005" in page.text("#now")
    assert "connection refused" in page.text("#network-body")
    assert "2.6\u202fB in, 2.5\u202fB out for each parameter and gradient" in page.text("#network-words")
    assert "412\u202fMB" in page.text("#health-body")


def test_a_status_that_is_older_than_the_run_is_not_the_present(serve: Serve, window: Open) -> None:
    run = list(synthetic.events(8, 20, ended=False))
    served = serve(*run)
    served.tell(msgspec.structs.replace(synthetic.status(run, 8), at=synthetic.START + 1))
    page = window()
    page.open(served.url, 20)
    page.wait("document.getElementById('health-body').textContent.includes('it says nothing newer')")
    assert not page.page.locator("#now").is_visible()


def test_votes_open_as_a_table(serve: Serve, window: Open) -> None:
    run = list(synthetic.events(16, 60, ended=False))
    page = window()
    page.open(serve(*run).url, 60)
    votes = page.page.locator("#trials-list article").last.locator("details")
    votes.locator("summary").click()
    trial = first_ban(run).trials[0]
    oldest = "[...document.querySelectorAll('#trials-list article')].at(-1)"
    page.wait(f"{oldest}.querySelectorAll('tbody tr').length === {len(trial.votes)}")
    assert "the accused lied" in votes.locator("tbody").inner_text()


def test_the_ring_tells_the_steps_roles(serve: Serve, window: Open) -> None:
    run = list(synthetic.events(16, 60, ended=False))
    last = run[-1]
    assert isinstance(last, Stepped)
    page = window()
    page.open(serve(*run).url, 60)
    page.wait("document.getElementById('ring-words').textContent.startsWith('Step 59:')")
    rows = page.page.locator("#who-table tbody tr").all_inner_texts()
    assert len(rows) == last.members  # nobody came or went in this step
    for audit in last.audits:
        row = next(row for row in rows if row.startswith(audit.auditor))
        assert "validator" in row
        assert audit.target in row
    owner = next(row for row in rows if row.startswith(last.owners[0]))
    assert "contributor\t0" in owner
    assert page.page.locator("#phases .phase").count() == len(last.phases)


def test_a_run_that_ends_says_so_and_asks_no_more(serve: Serve, window: Open) -> None:
    run = list(synthetic.events(8, 20, ended=False))
    served = serve(*run)
    page = window()
    page.open(served.url, 20)
    served.add(Ended(how="over", text="20 updates"))
    page.wait("document.getElementById('state').dataset.state === 'over'")
    asked = len(page.requests)
    page.page.wait_for_timeout(500)
    assert len(page.requests) == asked


def test_a_member_that_came_back_goes_on(serve: Serve, window: Open) -> None:
    """It says again who founded the run, and makes steps again that nobody had signed: those count."""
    run = list(synthetic.events(8, 20, ended=False))
    began = run[0]
    assert isinstance(began, Began)
    served = serve(*run, Ended(how="stopped"))
    page = window()
    page.open(served.url, 20)
    page.wait("document.getElementById('state-word').textContent === 'stopped'")
    _, again = split(run, 15)
    served.add(began, *again[:2])
    page.wait("document.getElementById('slider').max === '16'")
    page.wait("document.getElementById('state').dataset.state === 'live'")
