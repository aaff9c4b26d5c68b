"""Numbers for programs that watch a peer: Prometheus and TensorBoard, where asked for."""

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from troth.errors import OperatorError, how_to_install
from troth.events.kinds import Doing, Status, Stepped


class MetricsError(OperatorError):
    """Metrics cannot be written or served as asked for; the message names the fix."""


_GAUGES: dict[str, tuple[str, Callable[[Stepped], float]]] = {
    "step": ("updates made so far", lambda event: event.updates),
    "step_seconds": ("how long the last step took", lambda event: _known(event.seconds)),
    "loss": ("of this peer's last batch", lambda event: _known(event.loss)),
    "members": ("of the run", lambda event: event.members),
    "guarantee": ("liars among the members that the run still withstands", lambda event: _known(event.withstands)),
    "received_control_bytes": ("so far", lambda event: event.control_bytes),
    "received_bulk_bytes": ("so far", lambda event: event.bulk_bytes),
    "sent_bytes": ("so far", lambda event: event.sent_bytes),
    "received_bytes_per_parameter": (
        "and gradient, in the last steps",
        lambda event: _known(event.received_per_parameter),
    ),
    "sent_bytes_per_parameter": ("and gradient, in the last steps", lambda event: _known(event.sent_per_parameter)),
    "delta_seconds": ("that a message between honest peers might take", lambda event: event.delta_s),
    "attempts": ("that the last step took", lambda event: event.attempts),
}
_PRESENT: dict[str, tuple[str, Callable[[Status], float]]] = {
    "last_step_timestamp_seconds": ("when the last step ended, Unix time", lambda status: _known(status.stepped_at)),
    "left_seconds": ("estimated, to the end of the run; while it trains", lambda status: _known(status.left_s)),
}
_COUNTERS: dict[str, tuple[str, Callable[[Stepped], float]]] = {
    "audits": ("made by this peer", lambda event: event.own_audits),
    "bans": ("seen by this peer", lambda event: len(event.banned)),
    "absences": ("seen by this peer", lambda event: len(event.left)),
    "expulsions": ("seen by this peer", lambda event: len(event.expelled)),
    "returns": ("seen by this peer", lambda event: len(event.returned)),
}


def check_extra(port: int | None, *, tensorboard: bool) -> None:
    """Raise `MetricsError` if what is asked for needs a package that is not installed."""
    for asked, field, module in (
        (port is not None, "metrics_port", "prometheus_client"),
        (tensorboard, "tensorboard", "tensorboard"),
    ):
        try:
            if asked:
                import_module(module)
        except ImportError as error:
            raise MetricsError(f"`{field}` needs {module.replace('_', '-')}: {how_to_install('metrics')}") from error


class Metrics:
    """Writes the numbers of each step to every place that was asked for, and to Prometheus the present."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        tensorboard: bool = False,
        labels: Mapping[str, str],  # of all that Prometheus is told
    ) -> None:
        check_extra(port, tensorboard=tensorboard)
        self._closing = ExitStack()
        self._served = None if port is None else _Prometheus(port, labels, self._closing)
        self._writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / "tensorboard"))
            self._closing.callback(self._writer.close)

    def stepped(self, event: Stepped) -> None:
        if self._served is not None:
            self._served.stepped(event)
        if self._writer is not None:
            numbers = {f"peer/{name}": value(event) for name, (_, value) in _GAUGES.items() if name != "step"}
            for name, number in (numbers | {f"model/{name}": one for name, one in event.metrics.items()}).items():
                self._writer.add_scalar(name, number, event.step + 1)

    def show(self, event: Stepped) -> None:
        """How far the run was before this process: nothing of it is counted again."""
        if self._served is not None:
            self._served.show(event)

    def present(self, status: Status) -> None:
        """What the peer does now."""
        if self._served is not None:
            self._served.present(status)

    def close(self) -> None:
        self._closing.close()


class _Prometheus:
    """Numbers on a port of this machine; none of them stands at 0 for want of a first step."""

    def __init__(self, port: int, labels: Mapping[str, str], closing: ExitStack) -> None:
        import prometheus_client as prometheus

        registry = prometheus.CollectorRegistry()

        def made(kind: Any, name: str, text: str, *more: str) -> Any:
            one = kind(f"troth_{name}", text, [*labels, *more], registry=registry)
            return one if more else one.labels(**labels)

        self._labels = labels
        self._gauges = {name: made(prometheus.Gauge, name, text) for name, (text, _) in (_GAUGES | _PRESENT).items()}
        self._counters = {name: made(prometheus.Counter, name, text) for name, (text, _) in _COUNTERS.items()}
        self._state = made(prometheus.Gauge, "state", "1 for what this peer does now", "state")
        self._metric = made(prometheus.Gauge, "metric", "of the model", "name")
        try:
            server, thread = prometheus.start_http_server(port, addr="127.0.0.1", registry=registry)
        except OSError as error:
            raise MetricsError(f"cannot serve metrics on port {port}: {error.strerror}; choose another") from error
        for end in (thread.join, server.server_close, server.shutdown):  # the last one first
            closing.callback(end)
        for gauge in self._gauges.values():
            gauge.set(math.nan)
        self._gauges["step"].set(0)

    def show(self, event: Stepped) -> None:
        for name, (_, value) in _GAUGES.items():
            self._gauges[name].set(value(event))
        for name, number in event.metrics.items():
            self._metric.labels(**self._labels, name=name).set(number)

    def stepped(self, event: Stepped) -> None:
        self.show(event)
        for name, (_, value) in _COUNTERS.items():
            self._counters[name].inc(value(event))

    def present(self, status: Status) -> None:
        for doing in get_args(Doing):
            self._state.labels(**self._labels, state=doing).set(doing == status.doing)
        for name, (_, value) in _PRESENT.items():
            self._gauges[name].set(value(status))


def _known(number: float | None) -> float:
    return math.nan if number is None else number
