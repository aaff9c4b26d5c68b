"""Bugs planted in the rules about second views: each rule is needed, and the adversary is strong enough to show it (SPEC Q9)."""

from collections.abc import Collection
from typing import cast

import pytest

from tests.protocol.broadcast.announcement.promises import broken
from tests.protocol.broadcast.announcement.world import AnnouncementWorld
from troth.crypto import PeerId
from troth.protocol.broadcast.announcement import Announcement, Decision, proves, values_digest, view_bytes
from troth.protocol.wire.frames import Certificate, View


class _AFewGoOn(Announcement):
    """The signers of second views need not be a quorum: liars alone may say that all others broke off."""

    def _proves(self, certificate: Certificate) -> bool:
        quorum = 1 if certificate.broken_off else self._quorum
        return proves(self._slot, frozenset(self._members), certificate, self._tools, quorum)


class _QuorumOfSecondViews(Announcement):
    """A quorum of equal second views is taken for a certificate, whatever the others saw."""

    def _proves(self, certificate: Certificate) -> bool:
        if not certificate.broken_off:
            return super()._proves(certificate)
        signed = view_bytes(self._slot, certificate.values, certificate.gone, certificate.broken_off)
        right = [p for p, signature in certificate.views.items() if self._tools.verify(PeerId(p), signed, signature)]
        return len(right) >= cast(int, self._quorum)


class _GoesWithoutTheSlow(Announcement):
    """Goes on without members whose views are merely not there yet, or are of something else."""

    def _go_without_broken_off(self, now: float) -> None:
        really, self._gone = self._gone, frozenset(self._members) - {self._me}
        super()._go_without_broken_off(now)
        self._gone = really


class _LeavesThemOut(Announcement):
    """Takes members that broke off for missing ones, and signs another view, of the other values."""

    _left_out: tuple[PeerId, ...] = ()

    def _go_without_broken_off(self, now: float) -> None:
        if self._seen is None or self._quorum is None or self.decision is not None:
            return
        broken_off = tuple(p for p in sorted(self._in_time & self._gone) if self._seen not in self._views.get(p, ()))
        if not self._left_out and broken_off and len(self._in_time) - len(broken_off) >= self._quorum:
            self._left_out = broken_off
            seen = self._without(broken_off)
            self._views[self._me][seen] = View(seen[0], self._identity.sign(view_bytes(self._slot, *seen)), seen[1])
            self._out.append(self._views[self._me][seen])
        if self._left_out:
            seen = self._without(self._left_out)
            signed = {p: self._views[p][seen].signature for p in self._in_time if seen in self._views.get(p, ())}
            if signed.keys() == self._in_time - set(self._left_out):
                self._hold(Certificate(seen[0], dict(sorted(signed.items())), {}, seen[1]), now)

    def _without(self, broken_off: Collection[PeerId]) -> tuple[bytes, tuple[bytes, ...]]:
        left = {p: next(iter(values)) for p, values in self._direct.items() if p not in broken_off}
        return values_digest(left), tuple(p for p in self._members if p not in left)

    def _hear_certificate(self, certificate: Certificate, now: float) -> None:
        seen = self._seen
        if self._left_out and (certificate.values, certificate.gone) == self._without(self._left_out):
            self._seen = certificate.values, certificate.gone
        super()._hear_certificate(certificate, now)
        self._seen = seen

    def _decide(self, decision: Decision, now: float) -> None:
        gone = self._certificate.gone if self._certificate is not None else ()
        said = {peer: envelope for peer, envelope in decision.said.items() if peer not in gone}
        super()._decide(Decision(said, decision.equivocations), now)


class _AcceptedInAnyRound(Announcement):
    """A certificate of second views is accepted in any round, however few signed its chain."""

    def _hear_certificate(self, certificate: Certificate, now: float) -> None:
        number = self._round_now
        self._round_now = 0 if certificate.broken_off else number
        super()._hear_certificate(certificate, now)
        self._round_now = number


class _KeptToItself(Announcement):
    """A member that decides by second views does not hand on the certificate."""

    def _hold(self, certificate: Certificate, now: float) -> None:
        before = len(self._out)
        super()._hold(certificate, now)
        if certificate.broken_off:
            del self._out[before:]


class _CountsLateOnes(Announcement):
    """Second views that come when rounds have begun still make a certificate."""

    def _remember_view(self, sender: PeerId, view: View, now: float, via: PeerId) -> None:
        if view.broken_off:
            self._second_views.hear(sender, view, via)
            self._go_without_broken_off(now)
        else:
            super()._remember_view(sender, view, now, via)


class _KeepsAllSecondViews(Announcement):
    """Keeps every second view that anybody signs."""

    def _remember_view(self, sender: PeerId, view: View, now: float, via: PeerId) -> None:
        self._second_views._brought.clear()
        super()._remember_view(sender, view, now, via)


class _WaitsForTheGone(Announcement):
    """Signs no second view."""

    def _go_without_broken_off(self, now: float) -> None:
        pass


def _world(seed: int, bug: type[Announcement]) -> AnnouncementWorld:
    """Mostly as many liars as there may be: one to break off, and others to keep their second views."""
    members = 4 + seed % 6
    liars = (members + 1) // 2 - 1 if seed % 4 else None
    return AnnouncementWorld(seed, bug, members=members, liars=liars, departures=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("bug", "promise", "within"),
    [
        (_AFewGoOn, "agreement", 100),
        (_QuorumOfSecondViews, "agreement", 200),
        (_GoesWithoutTheSlow, "agreement", 300),
        (_LeavesThemOut, "agreement", 500),
        (_AcceptedInAnyRound, "agreement", 500),
        (_KeptToItself, "agreement", 300),
        (_CountsLateOnes, "agreement", 500),
        (_KeepsAllSecondViews, "bounds", 100),
    ],
)
def test_bugs_in_second_views_are_caught(bug: type[Announcement], promise: str, within: int) -> None:
    """[Q9] Each rule is needed: some seed breaks the promise."""
    found = (broken(_world(seed, bug).run()) for seed in range(within))
    assert any(why is not None and why.startswith(promise) for why in found)


def test_a_member_that_waits_for_the_gone_takes_all_rounds() -> None:
    """[Q9] So that the promise about departures can be broken."""
    worlds = (AnnouncementWorld(seed, _WaitsForTheGone, liars=0, departures=True).run() for seed in range(200))
    assert any((broken(world) or "").startswith("departure") for world in worlds)
