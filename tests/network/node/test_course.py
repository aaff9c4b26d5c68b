"""The course of a step: when each announcement ended, for whom it had to wait, and who was silent."""

from troth.crypto import Digest, Identity, Slot
from troth.network.node.telling import Course
from troth.protocol.wire.messages import Phase

RUN = Digest(bytes(32))
ONE, TWO, THREE = sorted(Identity.from_secret(bytes([k]) * 32).peer for k in (1, 2, 3))
NAMES = {ONE: "one", TWO: "two", THREE: "three"}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def slot(step: int, phase: Phase, attempt: int = 0) -> Slot:
    return Slot(RUN, step, phase, attempt)


def test_phases_are_told_from_the_beginning_of_their_step() -> None:
    clock = Clock()
    course = Course(clock)
    course.begin()
    clock.now += 0.5
    course.sample(slot(4, Phase.COMMIT), frozenset({TWO, THREE}))
    course.sample(slot(4, Phase.COMMIT), frozenset({THREE}))
    course.announced(slot(4, Phase.COMMIT), [ONE, TWO, THREE], NAMES)
    clock.now += 0.25
    course.announced(slot(4, Phase.CLIP, 1), [ONE, TWO], NAMES)
    told = course.phases(4, lambda peer: NAMES[peer])
    assert [(one.phase, one.attempt, one.began, one.ended, one.last) for one in told] == [
        ("commit", 0, 0.0, 0.5, ("three",)),
        ("clip", 1, 0.5, 0.75, ()),
    ], "an older sample says nothing about a later phase"
    assert course.phases(5, lambda peer: NAMES[peer]) == ()
    course.begin()
    assert course.phases(4, lambda peer: NAMES[peer]) == ()
    assert course.silences == {THREE: 1}, "silences are counted over the whole run"


def test_a_step_of_many_attempts_is_told_within_a_bound() -> None:
    course = Course(Clock())
    for attempt in range(500):
        course.announced(slot(0, Phase.CLIP, attempt), [ONE], [ONE])
    assert len(course.phases(0, lambda peer: NAMES[peer])) == 64


def test_members_that_are_heard_last_are_counted_with_how_long_they_were_waited_for() -> None:
    """Where all were late together, nobody was: this peer was only early."""
    clock = Clock()
    course = Course(clock)
    for phase, late, wait in (
        (Phase.COMMIT, {THREE}, 2.0),
        (Phase.CLIP, {TWO, THREE}, 9.0),
        (Phase.REVEAL, {THREE}, 4.0),
    ):
        course.sample(slot(4, phase), frozenset({TWO, THREE}))
        clock.now += wait
        course.sample(slot(4, phase), frozenset(late))
        course.announced(slot(4, phase), NAMES, NAMES)
    assert (course.last, course.late_s(THREE), course.late_s(TWO)) == ({THREE: 2}, 3.0, None)
    course.sample(slot(5, Phase.COMMIT), frozenset({THREE}))
    course.announced(slot(5, Phase.COMMIT), [ONE, TWO], NAMES)
    assert course.last == {THREE: 2}, "one that was not heard at all is counted as silent"
