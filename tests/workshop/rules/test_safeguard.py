"""SafeguardSGD: Algorithm 1 by hand, whom it removes and when, and what gets past it."""

import copy

import pytest
import torch
from torch import Tensor

from tests.clip.oracle import gaussian_rows
from troth.clip.exact import AggregationError
from troth.workshop.rules.memory import Setting
from troth.workshop.rules.remembering import Safeguard, SafeguardSingle
from troth.workshop.simulation import Scenario, simulate

# P peers, D coordinates

PEERS = 8


def setting(peers: int = PEERS, byzantine: int = 3) -> Setting:
    return Setting(peers, byzantine, 1.0, b"seed")


def noisy(step: int, peers: int = PEERS, width: int = 30) -> Tensor:
    return gaussian_rows(step, peers, width) + 1


def test_removal_by_hand() -> None:
    """Four peers send 1, 1, 1 and 2; over |good| = 4 the sums part by ¼ a step, and 2𝔗 = 0.6 is passed at the third."""
    rows_P1 = torch.tensor([[1.0], [1.0], [1.0], [2.0]], dtype=torch.float64)
    guard = SafeguardSingle(window=10, threshold=0.3).begin(setting(4, 1))
    found = [guard(rows_P1, range(4)).item() for _ in range(4)]
    assert found == [1.25, 1.25, 1.25, 1.0], "as published, it counts once more at the step at which it is found out"
    assert guard.removed == {3: 2}  # type: ignore[attr-defined]
    prompt = SafeguardSingle(window=10, threshold=0.3, at_once=True).begin(setting(4, 1))
    assert [prompt(rows_P1, range(4)).item() for _ in range(4)] == [1.25, 1.25, 1.0, 1.0]


def test_a_window_begins_anew() -> None:
    """Sums of two steps stay within 0.5, so with windows of two nobody is ever removed, and with a longer one too it is."""
    rows_P1 = torch.tensor([[1.0], [1.0], [1.0], [2.0]], dtype=torch.float64)
    short = SafeguardSingle(window=2, threshold=0.3).begin(setting(4, 1))
    both = Safeguard(short=2, long=6, short_threshold=0.3, long_threshold=0.6).begin(setting(4, 1))
    for _ in range(8):
        short(rows_P1, range(4))
        both(rows_P1, range(4))
    assert short.removed == {}  # type: ignore[attr-defined]
    assert both.removed == {3: 4}, "5 · ¼ > 2 · 0.6"  # type: ignore[attr-defined]


@pytest.mark.parametrize("rule", [Safeguard(), SafeguardSingle()])
def test_a_persistent_liar_goes_and_nobody_else(rule: Safeguard | SafeguardSingle) -> None:
    guard = rule.begin(setting())
    for step in range(40):
        rows_PD = noisy(step)
        if step >= 10:
            rows_PD[[1, 4, 6]] *= -100
        guard(rows_PD, range(PEERS))
    assert guard.removed == {1: 10, 4: 10, 6: 10}  # type: ignore[attr-defined]
    expected_D = noisy(99)[[0, 2, 3, 5, 7]].mean(dim=0)
    torch.testing.assert_close(guard(noisy(99), range(PEERS)), expected_D)


def test_peers_are_known_by_their_numbers() -> None:
    """Peer 2's row is missing at some steps: the rows behind it are still their senders'."""
    guard = SafeguardSingle().begin(setting())
    senders = [0, 1, 3, 4, 5, 6, 7]
    for step in range(20):
        rows_PD = noisy(step)
        rows_PD[5] *= -100
        guard(rows_PD[senders], senders)
    assert 5 in guard.removed  # type: ignore[attr-defined]
    assert set(guard.removed) <= {2, 5}  # type: ignore[attr-defined]


def test_a_copy_peeks() -> None:
    guard = Safeguard().begin(setting())
    for step in range(3):
        peek_D = copy.deepcopy(guard)(noisy(step), range(PEERS))
        assert torch.equal(peek_D, guard(noisy(step), range(PEERS)))


def test_perturbation_is_drawn_from_the_seed() -> None:
    rows_PD = noisy(0, width=4000)
    found = [SafeguardSingle(noise=0.5).begin(setting())(rows_PD, range(PEERS)) for _ in range(2)]
    assert torch.equal(*found)
    assert float((found[0] - rows_PD.mean(dim=0)).std()) == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("options", [{"short": 0}, {"short": 9, "long": 8}, {"margin": -1.0}, {"noise": float("nan")}])
def test_options(options: dict[str, float]) -> None:
    with pytest.raises(AggregationError):
        Safeguard(**options)  # type: ignore[arg-type]


def removed(task: str, defence: str, byzantine: int, attack: str = "sign-flip") -> tuple[set[int], list[int]]:
    scenario = Scenario(
        task=task,
        defence=defence,
        byzantine=byzantine,
        attack=attack,
        attack_start=20,
        steps=45,
        evaluate_every=45,
    )
    summary = simulate(scenario).summary
    return {int(peer) for peer in summary.details["removed"]}, summary.byzantine


@pytest.mark.long
@pytest.mark.parametrize("task", ["digits", "quadratic"])
def test_sign_flippers_are_removed_and_no_honest_peer(task: str) -> None:
    dropped, liars = removed(task, "safeguard", 7)
    assert dropped == set(liars)
    assert removed(task, "safeguard", 0) == (set(), [])


def test_lies_within_the_noise_stay() -> None:
    """The expected failure: a lie that drifts no farther than honest gradients do in a window is never found out."""
    dropped, liars = removed("digits", "safeguard", 7, "ipm-0.1")
    assert not dropped & set(liars)
