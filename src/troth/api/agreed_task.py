"""The task of a run that is checked: found, compared with what was agreed on, and made once for all files."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from troth.evidence.errors import RecomputeError
from troth.evidence.recompute import built_in_task, problem_of, task_fails
from troth.network.manifest.consent import relocated, require_consent
from troth.network.manifest.errors import ManifestError
from troth.network.manifest.fit import code_mismatch, mismatches
from troth.network.manifest.manifest import Manifest
from troth.protocol.core.run import Run
from troth.specs import parse_spec
from troth.training import Problem, Task, make_task
from troth.training.fingerprint import code_file

Outcome = Problem | None | RecomputeError


class AgreedTask:
    """The task that a manifest names, or that the reader does in its place; without either, a built-in one.

    A file is run only if it is byte for byte the agreed one. Without a manifest nobody can tell, and a file that the reader names
    is run on the reader's word. The manifest's own is run only if the reader has agreed to run those bytes, or does so now
    (`trust`): else `ConsentError`.
    """

    def __init__(self, manifest: Manifest | None, spec: str | None, trust: str | None = None) -> None:
        self._manifest = manifest
        self._wrong: str | None = None  # how the reader's file differs from the agreed one
        if manifest is not None and spec is None:
            require_consent(manifest, trust)
        file, pinned = Path("" if spec is None else parse_spec(spec)[0]), None
        if manifest is not None and file.suffix == ".py" and file.is_file():
            self._manifest = replace(manifest, task=file.name, folder=file.parent)  # in place of the one beside it
            try:
                pinned = relocated(manifest, file).pinned
            except ManifestError as error:
                self._wrong = str(error)
        self._own = None if spec is None or self._wrong is not None else make_task(spec, code=pinned)
        self._recomputing = cache(lambda run: _outcome(self._for_recomputing, run))
        self._weights = cache(lambda run: _outcome(self._for_weights, run))

    def for_recomputing(self, run: Run) -> Problem | None:
        """The task as the members computed with it, on its data; None on a machine without the run's device."""
        return _result(self._recomputing(run))

    def for_weights(self, run: Run) -> Problem:
        """The task's model, to tell which weight is which. It needs neither the run's device nor its data."""
        problem = _result(self._weights(run))
        assert problem is not None
        return problem

    def _for_recomputing(self, run: Run) -> Problem | None:
        manifest = self._manifest
        problem = problem_of(run, self._task(run))
        differences = [] if manifest is None or problem is None else mismatches(manifest, problem.task, problem)
        if differences:
            raise RecomputeError("; ".join(differences))
        return problem

    def _for_weights(self, run: Run) -> Problem:
        task, manifest = self._task(run), self._manifest
        wrong = None if manifest is None else code_mismatch(manifest, code_file(manifest.task, task, manifest.folder))
        if wrong is not None:
            raise RecomputeError(wrong)
        problem = Problem(task, one_by_one=True)  # asked for, so that no batch is drawn to find out
        if problem.size != run.parameters.size:
            raise RecomputeError(f"the task has {problem.size} parameters, the run agreed on {run.parameters.size}")
        return problem

    def _task(self, run: Run) -> Task:
        if self._wrong is not None:
            raise RecomputeError(self._wrong)
        if self._own is not None:
            return self._own
        return built_in_task(run) if self._manifest is None else self._manifest.make_task()


def _outcome(make: Callable[[Run], Problem | None], run: Run) -> Outcome:
    """Keep an error too: what fails for one file fails for all."""
    try:
        return make(run)
    except RecomputeError as error:
        return error
    except Exception as error:  # the task is its author's: anything can go wrong in it
        return task_fails(error)


def _result(outcome: Outcome) -> Problem | None:
    if isinstance(outcome, RecomputeError):
        raise outcome
    return outcome
