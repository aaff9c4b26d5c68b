"""Numbers of a step: Prometheus, TensorBoard, and one line for people."""

import re
import socket
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from msgspec.structs import replace

from troth.errors import how_to_install
from troth.events import phrases
from troth.events.kinds import Ban, Status, Stepped
from troth.network.node.metrics import Metrics, MetricsError

EVENT = Stepped(
    step=6,
    updates=7,
    of=9,
    seconds=0.5,
    loss=1.25,
    members=4,
    withstands=1,
    own_audits=2,
    control_bytes=100,
    bulk_bytes=200,
    sent_bytes=300,
    received_per_parameter=2.5,
    delta_s=3.25,
    least_delta_s=2.0,
    banned=(Ban(peer="mallory", reason="a wrong gradient"),),
    metrics={"accuracy": 0.875},
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


LABELS = {"run": "5f3a", "peer": "ann"}


def served(port: int) -> dict[str, str]:
    """Every number that Prometheus would read, without the labels that all have."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert all('peer="ann"' in name and 'run="5f3a"' in name for name in found)
    return {
        re.sub(r'(peer="ann"|run="5f3a"),?', "", name).replace(",}", "}").replace("{}", ""): value
        for name, value in found.items()
    }


def test_prometheus_sees_the_last_step_and_the_present(tmp_path: Path) -> None:
    port = free_port()
    metrics = Metrics(tmp_path, port=port, labels=LABELS)
    assert served(port)["troth_members"] == "NaN", "0 members would look like a loss"
    metrics.show(EVENT)  # what an earlier process told
    metrics.present(Status(doing="meeting", at=9.0, started_at=8.0, stepped_at=7.0))
    numbers = served(port)
    assert (numbers["troth_step"], numbers["troth_members"], numbers["troth_bans_total"]) == ("7.0", "4.0", "0.0")
    assert (numbers['troth_state{state="meeting"}'], numbers['troth_state{state="training"}']) == ("1.0", "0.0")
    assert (numbers["troth_last_step_timestamp_seconds"], numbers["troth_left_seconds"]) == ("7.0", "NaN")
    for _ in range(2):
        metrics.stepped(EVENT)
    metrics.present(Status(doing="training", at=9.0, started_at=8.0, stepped_at=7.0, left_s=60.0))
    assert (
        served(port).items()
        >= {
            "troth_step": "7.0",
            "troth_loss": "1.25",
            "troth_delta_seconds": "3.25",
            "troth_received_bytes_per_parameter": "2.5",
            "troth_sent_bytes_per_parameter": "NaN",
            "troth_audits_total": "4.0",
            "troth_bans_total": "2.0",
            'troth_metric{name="accuracy"}': "0.875",
            'troth_state{state="meeting"}': "0.0",
            'troth_state{state="training"}': "1.0",
            "troth_left_seconds": "60.0",
        }.items()
    )
    with pytest.raises(MetricsError, match=f"cannot serve metrics on port {port}: .*; choose another"):
        Metrics(tmp_path, port=port, labels=LABELS)
    metrics.close()


def test_tensorboard_is_asked_for_by_its_name(tmp_path: Path) -> None:
    """It is an extra: without it the message says what to install."""
    if find_spec("tensorboard") is None:
        with pytest.raises(MetricsError, match=re.escape(how_to_install("metrics"))):
            Metrics(tmp_path, tensorboard=True, labels=LABELS)
        return
    metrics = Metrics(tmp_path, tensorboard=True, labels=LABELS)
    metrics.stepped(EVENT)
    metrics.close()
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_delta_is_told_where_it_is_above_the_least() -> None:
    assert "0.50 s a step  Δ 3.2 s" in phrases.line(EVENT, "")
    assert "Δ" not in phrases.line(replace(EVENT, delta_s=2.0), "")


def test_an_observer_has_no_loss_to_show() -> None:
    measured = phrases.metrics_in_words(EVENT.metrics)
    assert "batch loss –  accuracy 87.5%" in phrases.line(replace(EVENT, loss=None), measured)
    assert "batch loss 1.250  peers" in phrases.line(EVENT, "")
