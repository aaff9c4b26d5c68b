"""A sample of the work, computed again: gradients, and updates of the model (SPEC E5).

It is drawn from the last record's randomness, which no single peer chose, so neither the folder's holder nor the reader picks
what is looked at. Only states that are in the folder can be used, and the run's first one, which the manifest gives.
"""

from collections.abc import Callable
from dataclasses import dataclass

from troth.api.verify import AgreedTask
from troth.audit.report import AuditReport, Check
from troth.audit.states import StateFiles, read_model
from troth.audit.walk import Walked
from troth.crypto import Digest, PeerId, stream
from troth.errors import OperatorError
from troth.evidence.file_format import RecomputeError
from troth.evidence.recompute import Gradients
from troth.evidence.signed_records import Name, names_in
from troth.network.manifest.manifest import Manifest
from troth.protocol.core.records import StepRecord
from troth.protocol.core.run import Run
from troth.protocol.core.state import State
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training, TrainingWork

Tell = Callable[[str], None]


class _OtherBitsError(Exception):
    """This machine computes other bits than the run's members."""


@dataclass(frozen=True)
class _Drawn:
    """A contributor's gradient of a step."""

    step: int
    peer: PeerId
    root: Digest


class Sampler:
    """Computes again what was drawn."""

    def __init__(self, manifest: Manifest, walked: Walked, found: StateFiles, report: AuditReport, tell: Tell) -> None:
        self._manifest = manifest
        self._run: Run = manifest.run
        self._walked = walked
        self._found = found
        self._report = report
        self._tell = tell
        self._tools = Primitives()
        self._name: Name = names_in(self._run, walked.state.roster) if walked.state is not None else bytes.hex

    def check(self, task: AgreedTask, count: int) -> None:
        """Draw `count` gradients, and make as many updates again."""
        try:
            problem = task.for_recomputing(self._run)
            if problem is None:
                raise RecomputeError(f"this machine has no {self._manifest.device}")
        except RecomputeError as error:
            self._report.skipped("gradients and updates", str(error))
            return
        work = self._manifest.work(problem, self._tools)
        first = self._first(work)
        states = {} if first is None else {first.model: first.training}
        try:
            fits = self._check_gradients(work, states, count)
        except RecomputeError as error:
            self._report.skipped("gradients", str(error))
            fits = False
        if first is not None:
            self._check_first(first.model, fits=fits)
        self._check_updates(work, states, count)

    def _first(self, work: TrainingWork) -> State[Training] | None:
        try:
            return self._manifest.first_state(work)
        except OperatorError as error:
            self._report.skipped("the run's first model", str(error))
            return None

    def _check_first(self, model: Digest, *, fits: bool) -> None:
        record = self._walked.records.get(0)
        if record is None or record.state_before == model:
            self._report.passed(Check.CONTENTS, record is not None)
        elif fits:
            self._report.wrong(Check.CONTENTS, "step 0", "the run began from another model than its manifest says")
        else:
            self._report.skipped("the run's first model", "this machine makes another one of the manifest's seed")

    # Gradients

    def _candidates(self, states: dict[Digest, Training]) -> list[_Drawn]:
        """All gradients that were taken at a state that is here."""
        here = states.keys() | self._found.models.keys()
        return [
            _Drawn(step, PeerId(peer), Digest(root))
            for step, record in sorted(self._walked.records.items())
            if self._content_before(step) in here
            for peer, root in zip(record.contributors, record.roots, strict=True)
        ]

    def _content_before(self, step: int) -> Digest | None:
        """Digest of the content of the state at the start of a step, where records name it (SPEC U5)."""
        before = self._walked.records.get(step - 1)
        named = step == 0 or (before is not None and before.content)
        return Digest(self._walked.records[step].state_before) if named else None

    def _check_gradients(self, work: TrainingWork, states: dict[Digest, Training], count: int) -> bool:
        """Whether any gradient came out as it was committed to: then this machine computes the run's bits."""
        candidates, last = self._candidates(states), self._walked.last
        if not candidates or last is None:
            self._report.skipped("gradients", "no state that one was taken at is in the folder")
            return False
        order = stream(Digest(last.randomness), "audit sample").sample(len(candidates), min(count, len(candidates)))
        drawn, fits = [candidates[k] for k in sorted(order.tolist())], False
        try:
            for number, one in enumerate(drawn, 1):
                self._tell(f"gradient {number} of {len(drawn)}")
                training = self._state(one.step, states)
                fits |= training is not None and self._check_gradient(work, training, one)
        except _OtherBitsError:
            why = "this machine computes other bits than the run's members; try one like theirs"
            self._report.skipped("gradients", why)
        return fits

    def _state(self, step: int, states: dict[Digest, Training]) -> Training | None:
        digest = self._content_before(step)
        if digest is None:
            return None
        if digest in states:
            return states[digest]
        path = self._found.models.get(digest)
        return None if path is None else read_model(path, self._run.parameters.size)

    def _check_gradient(self, work: TrainingWork, training: Training, one: _Drawn) -> bool:
        gradients = Gradients.at(self._walked.records[one.step], training, work, self._run.parameters)
        if gradients.root(one.peer) == one.root:
            self._report.passed(Check.GRADIENTS)
        else:
            self._check_wrong(gradients, one)
        return True

    def _check_wrong(self, gradients: Gradients, one: _Drawn) -> None:
        """Judge a gradient that does not come out. Only others that do show that it is not this machine which is different,
        or its sender, which named this machine's class."""
        where, banned = f"step {one.step}, {self._name(one.peer)}", {peer: step for step, peer in self._walked.bans()}
        record, several = gradients.step, self._run.parameters.deviation is not None
        others = {PeerId(peer): root for peer, root in zip(record.contributors, record.roots, strict=True)}
        fit = [] if several else [p for p, root in others.items() if p not in banned and gradients.tells(p, root)]
        own = not several and self._is_of_the_run(gradients, one)  # [E6]
        if not fit and not own:
            raise _OtherBitsError
        if one.peer in banned:
            step = banned[one.peer]
            self._report.passed(Check.GRADIENTS)
            self._report.remark(f"{where}: its gradient does not follow from its seed; it was banned in step {step}")
        elif own or len(fit) > self._run.parameters.byzantine:
            what = "its gradient does not follow from its seed, and it was never banned"
            self._report.wrong(Check.GRADIENTS, where, what)
        else:  # a few liars could compute what this machine does, to make all others look guilty
            what = f"its gradient does not come out, and those of {', '.join(map(self._name, fit))} do: these or it are wrong"
            self._report.wrong(Check.GRADIENTS, where, what)

    def _is_of_the_run(self, gradients: Gradients, one: _Drawn) -> bool:
        """Whether the sender named this machine's class, and so many others that one is honest: a liar may name any."""
        named = (self._walked.classes.get((one.step, PeerId(peer))) for peer in gradients.step.contributors)
        mine = gradients.hardware_class()
        here = [said == mine for said in named]
        return self._walked.classes.get((one.step, one.peer)) == mine and sum(here) > self._run.parameters.byzantine

    # Updates

    def _check_updates(self, work: TrainingWork, states: dict[Digest, Training], count: int) -> None:
        """Updates are reproducible arithmetic: the same bits on every machine (SPEC U1)."""
        here = states.keys() | self._found.models.keys()
        starts = [step for step in sorted(self._walked.records) if self._content_before(step) in here]
        for step in starts[:count]:
            training, made = self._state(step, states), 0
            while training is not None:
                record = self._walked.records.get(step)
                after = None if record is None else self._updated(work, training, record)
                if record is not None and after is not None:
                    made += 1
                    if work.shortened(after) != record.shortened:
                        what = "the optimizer's step was shortened otherwise than its members signed"
                        self._report.wrong(Check.UPDATES, f"step {step}", what)
                        break
                    self._tell(f"the update of step {step}")
                    if record.content:
                        self._compare(work, after, record, made)
                        break
                training, step = after, step + 1
        if not self._report.counts[Check.UPDATES]:
            self._report.skipped("updates", "no aggregate that belongs to a state in the folder is there")

    def _updated(self, work: TrainingWork, training: Training, record: StepRecord) -> Training | None:
        read, form = self._found.aggregates.get(record.step), self._run.parameters.coding.centers
        aggregate = None if read is None or not record.updated else read()
        if aggregate is None:
            return None
        update_D = self._tools.scaled(aggregate.numbers_D(form=form), record.factor)
        return work.update(training, update_D, record.updates - 1)

    def _compare(self, work: TrainingWork, after: Training, record: StepRecord, made: int) -> None:
        """Compare the state after so many updates with the content that a record names."""
        if work.digest(after) == record.state_after:
            self._report.passed(Check.UPDATES, made)
        else:
            what = "the aggregate does not lead to the state that its members signed"
            self._report.wrong(Check.UPDATES, f"step {record.step}", what)
