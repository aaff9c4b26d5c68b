"""Making a model again: the updates since the last saved one, from their aggregates and records (SPEC B6, U1)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from troth.crypto import Digest
from troth.network.disk.aggregates import AggregateFiles
from troth.protocol.core.records import StepRecord
from troth.protocol.recovery.aggregates import updated
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training, TrainingWork


@dataclass(frozen=True)
class Base:
    """A model that is here, and its digest as records name it."""

    step: int  # at the start of which it was
    training: Training
    model: Digest


class Replay:
    """Replays updates, and remembers the two states before the last one: a peer may have to go back by a step, and then audits
    the work of the step before (SPEC B2, B6). `rest` moves these out of memory."""

    def __init__(self, work: TrainingWork, aggregates: AggregateFiles, rest: Callable[[Training], None]) -> None:
        self._work = work
        self._aggregates = aggregates
        self._rest = rest
        self._earlier: tuple[Base, ...] = ()

    def __call__(
        self, step: int, model: Digest, records: Mapping[int, StepRecord], base: Callable[[], Base | None]
    ) -> Training | None:
        """The model at the start of a step, if everything since the base is here and leads to this digest."""
        known = next((one for one in self._earlier if (one.step, one.model) == (step, model)), None)
        if known is not None:
            return known.training
        self._earlier, here = (), base()
        while here is not None and here.step < step:
            before, here = here, self._next(here, records.get(here.step))
            if before.step >= step - 2:
                self._rest(before.training)
                self._earlier = (*self._earlier, before)
        return here.training if here is not None and here.model == model else None

    def _next(self, here: Base, record: StepRecord | None) -> Base | None:
        if record is None or record.closing or record.state_before != here.model:
            return None
        training = here.training
        if record.updated:
            aggregate_D = self._aggregates.read(record)
            if aggregate_D is None:
                return None
            training = updated(self._work, Primitives(), training, record, aggregate_D)
        if record.content and self._work.digest(training) != record.state_after:
            return None  # memory or disk failed somewhere on the way
        return Base(here.step + 1, training, Digest(record.state_after))
