"""Bugs in announcing (SPEC Q1–Q8)."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from troth.crypto import PeerId, Slot
from troth.protocol.broadcast.announcement import Announcement, Timing
from troth.protocol.broadcast.announcer import Announcer
from troth.protocol.broadcast.timeouts import Pacing
from troth.protocol.core.channel import AttemptView
from troth.protocol.wire.frames import Certificate


def _as_if_earlier(name: str, rounds: Callable[[Announcement], int]) -> Any:
    """Frames that this method hears are judged as so many rounds earlier."""
    original = getattr(Announcement, name)

    def lenient(self: Announcement, *given: Any) -> None:
        earlier = rounds(self)
        self._round_now -= earlier
        original(self, *given)
        self._round_now += earlier

    return patch.object(Announcement, name, lenient)


@contextmanager
def one_signature_short() -> Iterator[None]:
    with _as_if_earlier("_hear_chained", lambda _: 1), _as_if_earlier("_hear_certificate", lambda _: 1):
        yield


def certificate_exempt() -> Any:
    return _as_if_earlier("_hear_certificate", lambda announcement: announcement._round_now)


def certificates_kept() -> Any:
    original = Announcement.take

    def quiet(self: Announcement) -> list[Any]:
        return [frame for frame in original(self) if not isinstance(frame, Certificate)]

    return patch.object(Announcement, "take", quiet)


def certificate_unchecked() -> Any:
    def believed(self: Announcement, certificate: Certificate) -> bool:
        return set(certificate.views) == set(self._members)

    return patch.object(Announcement, "_proves", believed)


def first_of_two_taken() -> Any:
    original = Announcement._decide_by_chains

    def lenient(self: Announcement, now: float) -> None:
        self._accepted = {peer: dict(list(values.items())[:1]) for peer, values in self._accepted.items()}
        original(self, now)

    return patch.object(Announcement, "_decide_by_chains", lenient)


def deadline_from_the_local_clock() -> Any:
    original = Pacing.timing

    def local(self: Pacing, slot: Slot, view: AttemptView, members: Iterable[PeerId], now: float) -> Timing:
        return replace(original(self, slot, view, members, now), start=now)

    return patch.object(Pacing, "timing", local)


def timeouts_of_ones_own() -> Any:
    def own(self: Pacing) -> None:
        self.timeouts = self.bounds.after([self.latency.took()])

    return patch.object(Pacing, "begin_step", own)


def relays_not_passed_on() -> Any:
    return patch.object(Announcer, "_relay", lambda *_: None)
