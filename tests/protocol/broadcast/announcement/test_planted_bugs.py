"""Bugs planted in the announcement: each rule is needed, and the adversary is strong enough to show it."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, cast

import pytest

from tests.protocol.broadcast.announcement import link_dispute_promises as disputes
from tests.protocol.broadcast.announcement.link_dispute_world import LinkDisputeWorld
from tests.protocol.broadcast.announcement.promises import broken
from tests.protocol.broadcast.announcement.world import AnnouncementWorld
from troth.crypto import PeerId
from troth.protocol.broadcast.announcement import Announcement, Seen, chain_bytes, view_bytes
from troth.protocol.core.channel import Blame
from troth.protocol.wire.frames import Agreement as Frame
from troth.protocol.wire.frames import Certificate, Chained, Value
from troth.protocol.wire.messages import Envelope


@contextmanager
def _as_if_earlier(core: Announcement, rounds: int) -> Iterator[None]:
    """Judge frames that are heard within as so many rounds before."""
    core._round_now -= rounds
    try:
        yield
    finally:
        core._round_now += rounds


class _OneSignatureShort(Announcement):
    """A chain is accepted with one signature less."""

    def _hear_chained(self, item: Chained) -> None:
        with _as_if_earlier(self, 1):
            super()._hear_chained(item)

    def _hear_certificate(self, certificate: Certificate, now: float) -> None:
        with _as_if_earlier(self, 1):
            super()._hear_certificate(certificate, now)


class _CertificateInAnyRound(Announcement):
    """A certificate is accepted in any round, however few signed its chain."""

    def _hear_certificate(self, certificate: Certificate, now: float) -> None:
        with _as_if_earlier(self, self._round_now):
            super()._hear_certificate(certificate, now)


class _UncheckedCertificate(Announcement):
    """A certificate is believed for its form."""

    def _proves(self, certificate: Certificate) -> bool:
        return set(certificate.views) == set(self._members) - set(certificate.gone)


class _TakesFirstValue(Announcement):
    """The first of two values counts."""

    def _decide_by_chains(self, now: float) -> None:
        self._accepted = {peer: dict(list(values.items())[:1]) for peer, values in self._accepted.items()}
        super()._decide_by_chains(now)


class _KeepsCertificate(Announcement):
    """A member that decides by a certificate does not hand it on."""

    def _hold(self, certificate: Certificate, now: float) -> None:
        before = len(self._out)
        super()._hold(certificate, now)
        del self._out[before:]


class _OneRoundTooFew(Announcement):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._rounds -= 1


class _ChainStartsRounds(Announcement):
    """Rounds begin as soon as a chain is heard, while values are still on their way."""

    def hear(self, sender: PeerId, frame: Frame, now: float, via: PeerId | None = None) -> None:
        super().hear(sender, frame, now, via)
        if self._early and self._slow_since is None and self.decision is None:
            self._go_slow(now)


class _EarlyChainsLost(Announcement):
    """Chains of a faster member that arrive before one's own rounds begin are thrown away."""

    def _hear_chained(self, item: Chained) -> None:
        if self._slow_since is not None:
            super()._hear_chained(item)


class _EndsWithItsRounds(Announcement):
    """A member with a certificate goes on at once, but those whose rounds had begun wait for the last."""

    @property
    def ends(self) -> float | None:
        return self._decided_at if self._slow_since is None else self._round_end(self._rounds)


@pytest.mark.parametrize(
    ("bug", "promise", "within"),
    [
        (_OneSignatureShort, "agreement", 400),
        (_CertificateInAnyRound, "agreement", 800),
        (_UncheckedCertificate, "agreement", 100),
        (_TakesFirstValue, "agreement", 20),
        (_KeepsCertificate, "agreement", 100),
        (_OneRoundTooFew, "agreement", 800),
        (_ChainStartsRounds, "validity", 50),
        (_EarlyChainsLost, "agreement", 100),
        (_EndsWithItsRounds, "ends", 100),
    ],
)
def test_planted_bugs_are_caught(bug: type[Announcement], promise: str, within: int) -> None:
    """[Q1–Q6] Each rule is needed, and the adversary is strong enough to show it: some seed breaks the promise."""
    found = (broken(AnnouncementWorld(seed, bug).run()) for seed in range(within))
    assert any(why is not None and why.startswith(promise) for why in found)


class _AFewCertify(Announcement):
    """Those who are left need not be a quorum: liars alone may say that all others are gone."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._quorum = 1


class _NamesTheSlow(Announcement):
    """Names members that have not spoken yet, though they have not broken off."""

    def _missing(self, now: float) -> tuple[PeerId, ...] | None:
        return super()._missing(max(now, self._values_due))


class _ChangesItsMind(Announcement):
    """Signs another view when somebody is back, and speaks."""

    def hear(self, sender: PeerId, frame: Frame, now: float, via: PeerId | None = None) -> None:
        named = self._seen[1] if self._seen is not None else ()
        if isinstance(frame, Value) and sender in named and self.decision is None and self._slow_since is None:
            self._viewed_at = self._seen = None
        super().hear(sender, frame, now, via)


class _QuorumCertifies(Announcement):
    """A quorum of equal views is taken for a certificate, whatever the others saw."""

    def _proves(self, certificate: Certificate) -> bool:
        signed = view_bytes(self._slot, certificate.values, certificate.gone)
        right = [p for p, signature in certificate.views.items() if self._tools.verify(PeerId(p), signed, signature)]
        return len(right) >= cast(int, self._quorum)


@pytest.mark.long
@pytest.mark.parametrize(
    ("bug", "promise", "within"),
    [
        (_AFewCertify, "validity", 200),
        (_NamesTheSlow, "validity", 50),
        (_ChangesItsMind, "agreement", 2000),
        (_QuorumCertifies, "agreement", 400),
        (_CertificateInAnyRound, "agreement", 2000),
        (_KeepsCertificate, "agreement", 400),
    ],
)
def test_bugs_about_departures_are_caught(bug: type[Announcement], promise: str, within: int) -> None:
    """[Q9] Each rule is needed: some seed breaks the promise."""
    found = (broken(AnnouncementWorld(seed, bug, departures=True).run()) for seed in range(within))
    assert any(why is not None and why.startswith(promise) for why in found)


class _NamesDisputedLinks(Announcement):
    """Takes the word of a disputed link, though others would relay what comes from there."""

    def broken_off(self, gone: Collection[PeerId]) -> None:
        self._gone = frozenset(gone)


class _IgnoresViewsIfSomeAreSilent(Announcement):
    """Where somebody was silent, views have no say."""

    def _right_view(self, said: Mapping[PeerId, Envelope]) -> Seen | None:
        return super()._right_view(said) if len(said) == len(self._members) else None


class _ForgivesHiddenViews(Announcement):
    """Where somebody was silent, nobody is named for a view that did not come."""

    def _blame(self, said: Mapping[PeerId, Envelope]) -> Blame:
        blame = super()._blame(said)
        return (
            blame if len(said) == len(self._members) else Blame(frozenset(set(said) - self._in_time), blame.incomplete)
        )


@pytest.mark.long
@pytest.mark.parametrize(
    ("bug", "promise", "within"),
    [
        (_NamesDisputedLinks, disputes.standing, 400),
        (_IgnoresViewsIfSomeAreSilent, disputes.costs, 1000),
        (_ForgivesHiddenViews, disputes.costs, 1000),
    ],
)
def test_bugs_about_blame_for_departures_are_caught(
    bug: type[Announcement], promise: disputes.LinkDisputePromise, within: int
) -> None:
    """[F1, F3, Q9] Each rule is needed: without it an honest member pays, or nobody does."""
    worlds = (LinkDisputeWorld(seed, bug, departures=True).run() for seed in range(within))
    assert any(promise(world) is not None for world in worlds if disputes.broken(world) is None)


class _OriginatorCounts(Announcement):
    """The originator's own signature counts in a chain."""

    short = 0
    _own: Mapping[bytes, bytes] = MappingProxyType({})  # the originator's signature, to be passed on with the others

    def _hear_chained(self, item: Chained) -> None:
        signed = chain_bytes(self._slot, item.originator, self._tools.digest(item.envelope.payload))
        own = item.chain.get(item.originator, b"")
        if self._tools.verify(PeerId(item.originator), signed, own):
            self._own = {item.originator: own}
        with _as_if_earlier(self, self.short + len(self._own)):
            super()._hear_chained(item)
        self._own = {}

    def _accept(self, originator: PeerId, envelope: Envelope, chain: Mapping[bytes, bytes]) -> None:
        super()._accept(originator, envelope, {**chain, **self._own})


class _OriginatorCountsAndOneShort(_OriginatorCounts):
    short = 1


@pytest.mark.long
def test_the_last_round_is_needed_by_certificates_alone() -> None:
    """[Q5] f liars make chains of f − 1 signatures beside a value's originator, but of f on a certificate.

    So for values there is one round to spare: counting the originator does no harm; with one signature less it does.
    """
    assert all(broken(AnnouncementWorld(seed, _OriginatorCounts).run()) is None for seed in range(300))
    assert any(broken(AnnouncementWorld(seed, _OriginatorCountsAndOneShort).run()) is not None for seed in range(100))
