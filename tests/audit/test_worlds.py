"""Journals of honest peers in worlds with liars, crashes, cuts and loss: nothing in them is found wrong [E5]."""

import pytest

from tests.audit.worlds import reports_of
from troth.audit.report import Check
from troth.workshop.chaos.draws import draw_plan, draw_wide


@pytest.mark.parametrize("seed", [0, 1])
def test_no_honest_peers_journal_is_found_wrong(seed: int) -> None:
    for draw in (draw_plan, draw_wide):
        reports = reports_of(draw(seed, most_peers=7, steps=6))
        assert [finding.line() for _, report in reports for finding in report.findings] == []
        assert sum(report.retraced for _, report in reports) > 6
        assert all(report.counts[Check.RECORDS] >= report.retraced for _, report in reports)
