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
    """Writes the event of each step to every place that was asked for, and to Prometheus the present."""

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
        self._write = self._tensorboard(folder / "tensorboard") if tensorboard else None

    def stepped(self, event: Stepped) -> None:
        if self._served is not None:
            self._served.stepped(event)
        if self._write is not None:
            self._write(event)

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


class _Prometheus:
    """Numbers on a port of this machine; none of them stands at 0 for want of a first step."""

    def __init__(self, port: int, labels: Mapping[str, str], closing: ExitStack) -> None:
        import prometheus_client as prometheus

        registry = prometheus.CollectorRegistry()
        names = list(labels)

        def gauge(name: str, text: str, *more: str) -> Any:
            return prometheus.Gauge(f"troth_{name}", text, [*names, *more], registry=registry)

        def counter(name: str, text: str) -> Any:
            return prometheus.Counter(f"troth_{name}", text, names, registry=registry).labels(**labels)

        self._labels = labels
        self._gauges = {name: gauge(name, text).labels(**labels) for name, (text, _) in _GAUGES.items()}
        self._present = {name: gauge(name, text).labels(**labels) for name, (text, _) in _PRESENT.items()}
        self._counters = {name: counter(name, text) for name, (text, _) in _COUNTERS.items()}
        self._state = gauge("state", "1 for what this peer does now", "state")
        self._metric = gauge("metric", "of the model", "name")
        try:
            server, thread = prometheus.start_http_server(port, addr="127.0.0.1", registry=registry)
        except OSError as error:
            raise MetricsError(f"cannot serve metrics on port {port}: {error.strerror}; choose another") from error
        closing.callback(thread.join)
        closing.callback(server.server_close)
        closing.callback(server.shutdown)
        for known in (*self._gauges.values(), *self._present.values()):
            known.set(math.nan)
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
            self._present[name].set(value(status))


def _known(number: float | None) -> float:
    return math.nan if number is None else number
