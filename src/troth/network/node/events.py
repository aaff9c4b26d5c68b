"""Events of a peer's life for people and machines that watch it: one after every step, and notes in between."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from math import isnan
from typing import Protocol

from troth.crypto import PeerId
from troth.evidence.bans import reason_for
from troth.network.manifest.manifest import Manifest
from troth.network.manifest.resilience import least_to_move
from troth.protocol.core.records import StepRecord
from troth.protocol.core.state import Outcome
from troth.training.work import Training


@dataclass(frozen=True)
class StepEvent:
    """One step, as one peer saw it."""

    step: int  # the next one
    of: int  # updates of the whole run
    seconds: float  # that this step took
    loss: float  # of this peer's last batch
    members: int
    guarantee: int  # liars among them that the run still withstands
    audits: int  # that this peer made in this step
    attempts: int
    control_bytes: int  # received so far
    bulk_bytes: int
    sent_bytes: int
    delta_s: float = 0.0  # the agreed bound on the delay of a message between honest peers
    least_delta_s: float = 0.0
    banned: tuple[tuple[str, str], ...] = ()  # name and reason
    left: tuple[str, ...] = ()  # without a ban; they may come back
    expelled: tuple[str, ...] = ()  # without a ban; they may not come back
    returned: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()  # strangers that are members from now on
    new_keys: tuple[str, ...] = ()  # of those, in the same order; empty where it is the old one
    updates: int | None = None  # made so far, if they are not as many as steps
    paused_for: tuple[str, ...] | None = None  # the model did not move; these are gone and may come back
    ever: int = 0  # members that the run ever had
    needed: int = 0  # members without whom the model does not move
    unjudged: bool = False  # the model did not move, since no quorum judged an aggregate
    observed: bool = False
    closing: bool = False  # the run's last step, in which everyone audits the one before
    restarted: bool = False  # the run went on with this step after too many had stopped
    metrics: dict[str, float] | None = None  # of the model, where it was evaluated

    def sentences(self) -> list[str]:
        """Everything about this step that is worth a line of its own."""
        news = [
            *(["the run goes on, after too many had stopped"] if self.restarted else []),
            *(f"{name} is banned: {reason}" for name, reason in self.banned),
            *(f"{name} is absent, and no longer a member" for name in self.left),
            *(f"{name} is expelled: its connection failed too often" for name in self.expelled),
            *(f"{name} joined, after its probation" for name in self.joined),
            *(f"{name} is back" + (f" (new key {key})" if key else "") for name, key in self._back()),
            *(["the last step is audited, and the run is closed"] if self.closing else []),
        ]
        return [f"{self.when}: {one}" for one in news]

    @property
    def when(self) -> str:
        """The step, as records and evidence count it; with the updates so far where pauses set the two apart."""
        apart = self.updates is not None and self.updates not in (self.step, self.step - 1)
        return f"step {self.step - 1}" + (f" (update {self.updates})" if apart else "")

    def _back(self) -> Iterator[tuple[str, str]]:
        return zip_longest(self.returned, self.new_keys[: len(self.returned)], fillvalue="")

    def pause(self) -> str | None:
        """Why the model did not move in this step, who is missing, and what to do; None if it moved."""
        if self.paused_for is None:
            return None
        if self.unjudged:
            return f"{self.when} did not move the model: no quorum judged one of its parts; audits find who lied"
        if self.members >= self.needed:
            return f"{self.when} did not move the model; enough are back, and the next one does"
        gone = self.ever - self.members
        names = f" ({', '.join(self.paused_for)})" if self.paused_for else ""
        among = (
            f"with up to {self.guarantee} liar{'' if self.guarantee == 1 else 's'} among them "
            if self.guarantee
            else ""
        )
        return (
            f"paused: {gone} of {self.ever} {'is' if gone == 1 else 'are'} gone{names}, and {among}{self.needed} are needed to "
            f"train; nothing is lost, steps and schedule wait. {self._way_out()}"
        )

    def _way_out(self) -> str:
        fresh = "begin a new run from this model with those who are left: troth new --from FOLDER"
        if self.members + len(self.paused_for or ()) < self.needed:
            return f"Too many can never come back: {fresh}"
        return f"They come back with the same command as before; if they never will, {fresh}"

    def line(self, metrics: str) -> str:
        """The state of the run, in one line."""
        observing = "  (observing)" if self.observed else ""
        if self.paused_for is not None:
            observing += "  paused"
        slow = f"  Δ {self.delta_s:.1f} s" if self.delta_s > self.least_delta_s else ""
        loss = "–" if isnan(self.loss) else f"{self.loss:.3f}"  # a peer that only observes has computed none yet
        done = self.step if self.updates is None else self.updates
        measured = f"{metrics}  " if metrics else ""
        return (
            f"step {done}/{self.of}  batch loss {loss}  {measured}peers {self.members}  "
            f"withstands {self.guarantee}  {self.seconds:.2f} s a step{slow}{observing}"
        )

    def metrics_in_words(self) -> str:
        return metrics_in_words(self.metrics or {})


def metrics_in_words(metrics: Mapping[str, float]) -> str:
    """A model's metrics; its loss is not the one of a peer's last batch, so it has a name of its own."""
    return "  ".join(_metric(name, value) for name, value in metrics.items())


def _metric(name: str, value: float) -> str:
    if name == "accuracy":
        return f"accuracy {value:.1%}"
    return f"{'test loss' if name == 'loss' else name} {value:.4g}"


class EventSink(Protocol):
    """Takes events: a terminal, the parent process of a swarm, a test."""

    def stepped(self, event: StepEvent, record: StepRecord) -> None:
        """A step has ended, with this record."""

    def note(self, text: str) -> None:
        """One line for people."""


@dataclass(frozen=True)
class Traffic:
    """Bytes so far."""

    control_bytes: int  # received
    bulk_bytes: int  # received
    sent_bytes: int


def step_event(
    outcome: Outcome[Training],
    manifest: Manifest,
    name_of: Callable[[PeerId], str],
    traffic: Traffic,
    *,
    seconds: float,
    loss: float,
    delta_s: float,
    restarted: bool,
    metrics: dict[str, float] | None,
) -> StepEvent:
    """The event of a step, with names instead of keys."""
    record, state, name = outcome.record, outcome.state, name_of
    return StepEvent(
        step=state.step,
        updates=state.scales.updates,
        of=manifest.steps,
        seconds=seconds,
        loss=loss,
        members=len(state.roster.members),
        guarantee=state.roster.liars,
        audits=len(outcome.audited),
        attempts=outcome.attempts,
        control_bytes=traffic.control_bytes,
        bulk_bytes=traffic.bulk_bytes,
        sent_bytes=traffic.sent_bytes,
        delta_s=delta_s,
        least_delta_s=manifest.timeouts.delta,
        banned=tuple({name(j.banned): reason_for(j, name) for j in record.judgements if j.banned is not None}.items()),
        left=tuple(name(PeerId(peer)) for peer in record.absent),
        expelled=tuple(name(PeerId(peer)) for peer in record.expelled),
        returned=tuple(name(PeerId(rejoin.member)) for rejoin in record.returned),
        joined=tuple(name(PeerId(newcomer.key)) for newcomer in record.admitted),
        new_keys=tuple(
            PeerId(rejoin.key).hex()[:8] if rejoin.key != rejoin.member else "" for rejoin in record.returned
        ),
        ever=state.roster.admitted,
        needed=least_to_move(state.roster, manifest.parameters.validators),
        paused_for=tuple(name(gone.peer) for gone in state.roster.away) if paused(record) else None,
        unjudged=record.unjudged,
        observed=outcome.observed,
        closing=record.closing,
        restarted=restarted,
        metrics=metrics,
    )


def paused(record: StepRecord) -> bool:
    """Whether the model did not move in this step, though it is not the one that closes the run."""
    return not record.updated and not record.closing
