"""Numbers for programs that watch a peer: Prometheus and TensorBoard, where asked for."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from troth.errors import OperatorError
from troth.events.kinds import Stepped
from troth.extras import how_to_install


class MetricsError(OperatorError):
    """Metrics cannot be written or served as asked for; the message names the fix."""


_GAUGES: dict[str, tuple[str, Callable[[Stepped], float]]] = {
    "step": ("updates made so far", lambda event: event.step + 1),
    "step_seconds": ("how long the last step took", lambda event: _known(event.seconds)),
    "loss": ("of this peer's last batch", lambda event: _known(event.loss)),
    "members": ("of the run", lambda event: event.members),
    "guarantee": ("liars among the members that the run still withstands", lambda event: _known(event.withstands)),
    "received_control_bytes": ("so far", lambda event: event.control_bytes),
    "received_bulk_bytes": ("so far", lambda event: event.bulk_bytes),
    "sent_bytes": ("so far", lambda event: event.sent_bytes),
    "delta_seconds": ("that a message between honest peers might take", lambda event: event.delta_s),
    "attempts": ("that the last step took", lambda event: event.attempts),
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
            raise MetricsError(f"{field} needs {module.replace('_', '-')}: {how_to_install('metrics')}") from error


class Metrics:
    """Writes the event of each step to every place that was asked for."""

    def __init__(self, folder: Path, *, port: int | None = None, tensorboard: bool = False) -> None:
        check_extra(port, tensorboard=tensorboard)
        self._closing = ExitStack()
        self._sinks: list[Callable[[Stepped], None]] = []
        try:
            if port is not None:
                self._sinks.append(self._prometheus(port))
            if tensorboard:
                self._sinks.append(self._tensorboard(folder / "tensorboard"))
        except MetricsError:
            self.close()
            raise

    def stepped(self, event: Stepped) -> None:
        for sink in self._sinks:
            sink(event)

    def close(self) -> None:
        self._closing.close()

    def _prometheus(self, port: int) -> Callable[[Stepped], None]:
        import prometheus_client as prometheus

        registry = prometheus.CollectorRegistry()
        gauges = {
            name: prometheus.Gauge(f"troth_{name}", text, registry=registry) for name, (text, _) in _GAUGES.items()
        }
        counters = {
            name: prometheus.Counter(f"troth_{name}", text, registry=registry) for name, (text, _) in _COUNTERS.items()
        }
        metrics = prometheus.Gauge("troth_metric", "of the model", ["name"], registry=registry)
        try:
            server, thread = prometheus.start_http_server(port, addr="127.0.0.1", registry=registry)
        except OSError as error:
            raise MetricsError(f"cannot serve metrics on port {port}: {error.strerror}; choose another") from error
        self._closing.callback(thread.join)
        self._closing.callback(server.server_close)
        self._closing.callback(server.shutdown)

        def show(event: Stepped) -> None:
            for name, (_, value) in _GAUGES.items():
                gauges[name].set(value(event))
            for name, (_, value) in _COUNTERS.items():
                counters[name].inc(value(event))
            for name, number in event.metrics.items():
                metrics.labels(name=name).set(number)

        return show

    def _tensorboard(self, folder: Path) -> Callable[[Stepped], None]:
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter(str(folder))
        self._closing.callback(writer.close)

        def write(event: Stepped) -> None:
            for name, (_, value) in _GAUGES.items():
                if name != "step":
                    writer.add_scalar(f"peer/{name}", value(event), event.step + 1)
            for name, number in event.metrics.items():
                writer.add_scalar(f"model/{name}", number, event.step + 1)

        return write


def _known(number: float | None) -> float:
    return math.nan if number is None else number
