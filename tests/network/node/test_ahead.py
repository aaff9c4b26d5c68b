"""Gradients that are begun before they are asked for: the same bits, one at a time, and nobody waits for what nobody wants."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from troth.crypto import Seed, derive
from troth.network.node.ahead import GradientsAhead, GradientTimes
from troth.network.node.node import drive
from troth.protocol.wire.primitives import Primitives
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.determinism import threads
from troth.training.task import Batch, Model
from troth.training.tasks.synthetic import Quadratic
from troth.training.user_code import UnwantedError
from troth.training.work import Training, TrainingWork

_PATIENCE_S = 60.0  # no test waits for it to pass: only one that fails does
SEEDS = [derive(0, "ahead", k) for k in range(4)]


class WatchedWork(TrainingWork):
    """Notes which gradients it computes, in which thread; may be held up, and fail."""

    def watch(self) -> "WatchedWork":
        self.computed: list[tuple[Seed, bool]] = []  # with whether it was in the main thread
        self.at_once = self.most_at_once = 0
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self.go_on.set()
        self.fails: set[Seed] = set()
        return self

    def gradient_now(self, training: Training, seed: Seed) -> Tensor:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.computed.append((seed, threading.current_thread() is threading.main_thread()))
        self.begun.release()
        try:
            assert self.go_on.wait(_PATIENCE_S)
            if seed in self.fails:
                raise ValueError("no such batch")
            return super().gradient_now(training, seed)
        finally:
            self.at_once -= 1


@dataclass
class Scene:
    work: WatchedWork
    ahead: GradientsAhead
    training: Training

    def asked(self, seed: Seed, training: Training | None = None) -> Tensor:
        return drive(self.ahead.gradient(training or self.training, seed, 1))

    def right(self, seed: Seed) -> Tensor:
        return TrainingWork.gradient_now(self.work, self.training, seed)


def scene(allowed_s: float = _PATIENCE_S, task: Any = None) -> Scene:
    """A work that has computed one gradient already: before that nothing is begun."""
    problem = Problem(task or make_task("quadratic:dimension=24"))
    made = WatchedWork(problem, OPTIMIZERS["sgd"](), SCHEDULES["constant"](0.1, 9), Primitives()).watch()
    found = Scene(made, GradientsAhead(made, lambda: allowed_s), made.first(0))
    found.asked(SEEDS[3])
    made.begun.acquire()
    made.computed.clear()
    return found


@pytest.fixture
def at_work() -> Iterator[Scene]:
    found = scene()
    yield found
    found.work.go_on.set()
    found.ahead.close()


def begins(at_work: Scene) -> None:
    """Wait until the thread has begun another gradient."""
    assert at_work.work.begun.acquire(timeout=_PATIENCE_S)


def test_an_expected_gradient_is_computed_once_beside_the_protocol_with_the_same_bits(at_work: Scene) -> None:
    """[R2] The thread's, and those of a call: for the contributor, and for an auditor."""
    at_work.ahead.expect([(at_work.training, SEEDS[0]), (at_work.training, SEEDS[1])])
    begins(at_work)
    begins(at_work)
    own_D, audited_D = at_work.asked(SEEDS[0]), drive(at_work.ahead.recompute(at_work.training, SEEDS[1]))
    assert at_work.work.computed == [(SEEDS[0], False), (SEEDS[1], False)]
    assert torch.equal(own_D, at_work.right(SEEDS[0]))
    assert torch.equal(audited_D, at_work.right(SEEDS[1]))


def test_gradients_that_are_not_finite_are_counted_until_one_is(at_work: Scene) -> None:
    """[R2] They count as zero: people are told."""
    ruined = Training(torch.full_like(at_work.training.parameters_D, torch.inf), at_work.training.optimizer)
    assert at_work.ahead.in_vain == 0
    for count in (1, 2):
        assert not at_work.asked(SEEDS[0], ruined).any()
        assert at_work.ahead.in_vain == count
    at_work.asked(SEEDS[0])
    assert at_work.ahead.in_vain == 0


def test_a_gradient_that_nobody_expected_is_computed_when_it_is_asked_for(at_work: Scene) -> None:
    """[R2] Also one at equal numbers that are another state: only the very same state is known to be equal."""
    at_work.ahead.expect([(at_work.training, SEEDS[0])])
    begins(at_work)
    equal = Training(at_work.training.parameters_D.clone(), at_work.training.optimizer)
    at_work.asked(SEEDS[1])
    at_work.asked(SEEDS[0], equal)
    assert at_work.work.computed == [(SEEDS[0], False), (SEEDS[1], True), (SEEDS[0], True)]


def test_never_two_gradients_at_once(at_work: Scene) -> None:
    """A module takes one set of parameters at a time."""
    at_work.work.go_on.clear()
    at_work.ahead.expect([(at_work.training, SEEDS[0])])
    begins(at_work)
    threading.Timer(0.0, at_work.work.go_on.set).start()
    at_work.asked(SEEDS[1])
    with at_work.ahead.alone():
        assert at_work.work.at_once == 0
    assert at_work.work.most_at_once == 1


def test_what_is_no_longer_expected_is_not_begun(at_work: Scene) -> None:
    """[N2] The attempt was discarded, or the role asks for no gradient: the one behind the one under way never begins."""
    at_work.work.go_on.clear()
    at_work.ahead.expect([(at_work.training, SEEDS[0]), (at_work.training, SEEDS[1])])
    begins(at_work)
    at_work.ahead.expect([(at_work.training, SEEDS[2])])
    at_work.work.go_on.set()
    at_work.asked(SEEDS[2])
    assert [seed for seed, _ in at_work.work.computed] == [SEEDS[0], SEEDS[2]]


def test_what_is_still_expected_goes_on(at_work: Scene) -> None:
    """[D1] An audit under way is not begun again when the next step's gradient is expected behind it."""
    audit = (at_work.training, SEEDS[0])
    at_work.ahead.expect([audit])
    begins(at_work)
    at_work.ahead.expect([audit, (at_work.training, SEEDS[1])])
    drive(at_work.ahead.recompute(*audit))
    at_work.asked(SEEDS[1])
    assert [seed for seed, _ in at_work.work.computed] == [SEEDS[0], SEEDS[1]]


def test_at_most_two_are_kept(at_work: Scene) -> None:
    """Each takes as much memory as the model."""
    at_work.ahead.expect([(at_work.training, seed) for seed in SEEDS])
    at_work.asked(SEEDS[2])
    with at_work.ahead.alone():
        assert SEEDS[3] not in {seed for seed, _ in at_work.work.computed}


def test_an_error_is_raised_where_the_gradient_is_asked_for(at_work: Scene) -> None:
    at_work.work.fails = {SEEDS[0]}
    at_work.ahead.expect([(at_work.training, SEEDS[0])])
    begins(at_work)
    with pytest.raises(ValueError, match="no such batch"):
        at_work.asked(SEEDS[0])
    at_work.asked(SEEDS[1])  # and the thread goes on


def test_an_error_of_a_gradient_that_nobody_asks_for_is_nobodys(at_work: Scene) -> None:
    at_work.work.fails = {SEEDS[0]}
    at_work.ahead.expect([(at_work.training, SEEDS[0])])
    begins(at_work)
    at_work.ahead.expect(())
    at_work.asked(SEEDS[1])


def test_the_end_waits_for_no_gradient(at_work: Scene) -> None:
    """A peer that is stopped says goodbye and saves its state at once."""
    at_work.work.go_on.clear()
    at_work.ahead.expect([(at_work.training, SEEDS[0]), (at_work.training, SEEDS[1])])
    begins(at_work)
    at_work.ahead.close()
    assert at_work.work.at_once == 1, "it is still under way"
    at_work.work.go_on.set()
    with at_work.ahead.alone():
        assert [seed for seed, _ in at_work.work.computed] == [SEEDS[0]]


def test_the_loss_is_that_of_the_own_batch(at_work: Scene) -> None:
    """Neither that of an audit, nor that of a gradient begun for the next step."""
    at_work.asked(SEEDS[0])
    mine = at_work.ahead.loss
    drive(at_work.ahead.recompute(at_work.training, SEEDS[1]))
    at_work.ahead.expect([(at_work.training, SEEDS[2])])
    begins(at_work)
    with at_work.ahead.alone():
        assert at_work.work.loss != mine
    assert at_work.ahead.loss == mine


@pytest.mark.parametrize("allowed_s", [0.0, 1e-9])
def test_nothing_is_begun_that_could_make_this_peer_late(allowed_s: float) -> None:
    """[Q8] Two gradients take longer than the others allow for one."""
    at_work = scene(allowed_s)
    at_work.ahead.expect([(at_work.training, SEEDS[0])])
    at_work.asked(SEEDS[0])
    assert at_work.work.computed == [(SEEDS[0], True)]
    assert at_work.ahead.took_ahead() > 0.0, "so that they allow more"


def test_nothing_is_begun_without_a_bound() -> None:
    """A liar's gradients are not those that `gradient_now` gives."""
    at_work = scene()
    never = GradientsAhead(at_work.work)
    drive(never.gradient(at_work.training, SEEDS[0], 1))
    never.expect([(at_work.training, SEEDS[1])])
    drive(never.gradient(at_work.training, SEEDS[1], 1))
    assert at_work.work.computed == [(SEEDS[0], True), (SEEDS[1], True)]
    assert never.took_ahead() == 0.0


class LongLoss(Quadratic):
    """A loss whose operations can be held up."""

    begun, go_on = threading.Event(), threading.Event()
    finished: list[int] = []  # noqa: RUF012

    def loss(self, model: Model, batch: Batch) -> Tensor:
        self.begun.set()
        assert self.go_on.wait(_PATIENCE_S)
        found = super().loss(model, batch)
        self.finished.append(1)
        return found


def test_a_gradient_that_nobody_wants_ends_at_its_next_operation() -> None:
    """So that a validator's audit need not wait for a gradient of its own that no role asks for."""
    LongLoss.go_on.set()
    task = LongLoss(dimension=24)
    at_work = scene(task=task)
    LongLoss.begun.clear()
    LongLoss.go_on.clear()
    LongLoss.finished.clear()
    at_work.ahead.expect([(at_work.training, SEEDS[0])])
    assert LongLoss.begun.wait(_PATIENCE_S)
    unwanted = at_work.ahead._begun[0].computed
    at_work.ahead.expect(())
    LongLoss.go_on.set()
    assert isinstance(unwanted.exception(_PATIENCE_S), UnwantedError)
    assert not LongLoss.finished
    assert torch.equal(at_work.asked(SEEDS[1]), at_work.right(SEEDS[1])), "and leaves nothing behind"


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40), st.floats(1e-3, 4e3))
def test_one_begun_in_vain_and_another_fit_into_the_time_allowed(seconds: list[float], allowed_s: float) -> None:
    """[Q8] By the longest of the last gradients."""
    times = GradientTimes()
    assert not times.afford(allowed_s)
    for one in seconds:
        times.add(one)
    if times.afford(allowed_s):
        assert all(one + other <= allowed_s for one in seconds[-16:] for other in seconds[-16:])
    else:
        assert 2 * max(seconds[-16:]) > allowed_s


def test_bits_do_not_depend_on_the_thread_that_computes() -> None:
    """[D1] PyTorch cuts sums by its number of threads, which a thread of ours must share with the protocol's."""
    with threads(2):
        at_work = scene(task=make_task("digits"))
        at_work.ahead.expect([(at_work.training, SEEDS[0])])
        begins(at_work)
        ahead_D = at_work.asked(SEEDS[0])
        assert at_work.work.computed == [(SEEDS[0], False)]
        assert torch.equal(ahead_D, at_work.right(SEEDS[0]))
