"""Liars that want everyone to wait for announcements: each fallback costs them something (SPEC F1–F3, Q4)."""

from collections.abc import Iterable

import pytest
from msgspec import structs

from tests.protocol.scripted_world import FIRST_LYING_STEP, LiarLink, LiarScript, WorldRun, peer_ids, plan, run_world
from tests.protocol.step.disputes.lying_scripts import LIAR, VICTIM, KeepsFromOne
from troth.crypto import PeerId, Slot, blob_digest
from troth.protocol.broadcast.announcement import chain_bytes
from troth.protocol.wire.frames import Certificate, Chained, Packet, Value, View
from troth.protocol.wire.messages import Accuse, Envelope, Message, Phase
from troth.workshop.attacks.lies import signed_view
from troth.workshop.chaos.plan import Network


class _NamesNobody(LiarScript):
    """Lies behind the back of its own code, and names nobody in Accuse."""

    def hears(self, link: LiarLink, sender: PeerId, packet: Packet) -> bool:
        return not isinstance(packet.frame, View) or packet.slot.step < FIRST_LYING_STEP

    def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
        return structs.replace(message, unheard=(), incomplete=()) if isinstance(message, Accuse) else message

    def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        if packet.slot.step < FIRST_LYING_STEP:
            return (packet,)
        return () if isinstance(packet.frame, Certificate) else self.lies(link, to, packet)

    def lies(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        return (packet,)


class _Shuns(LiarScript):
    """Sends nothing at all to one member."""

    def __init__(self, victim: PeerId) -> None:
        self._victim = victim

    def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        return () if to == self._victim and packet.slot.step >= FIRST_LYING_STEP else (packet,)


class _ClaimsIncomplete(_NamesNobody):
    """Signs in every announcement that something is missing."""

    def lies(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        view = isinstance(packet.frame, View)
        return (Packet(packet.slot, signed_view(link.identity, packet.slot, None)) if view else packet,)


class _HidesViews(_NamesNobody):
    """Hands its views to nobody."""

    def lies(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        return () if isinstance(packet.frame, View) else (packet,)


def _never_again(seen: WorldRun) -> None:
    """Check that from some step on there are no more slow paths, and that training went on all the time."""
    seen.check_promises()
    last = max(seen.slow_steps())
    assert min(seen.slow_steps()) >= FIRST_LYING_STEP
    assert last < FIRST_LYING_STEP + 3
    quiet = [seconds for step, seconds in enumerate(seen.seconds) if step > last]
    assert len(quiet) >= 3
    assert seen.records[-1].updated


def test_a_liar_that_sends_one_member_nothing_costs_one_step_of_slow_paths() -> None:
    """[F1, F2] Every announcement of that step is slow; then others relay for the pair, and nobody is struck."""
    seen = run_world(plan(), _Shuns(peer_ids(1, 5)[VICTIM]))
    _never_again(seen)
    assert seen.slow_steps() == {FIRST_LYING_STEP: 5}
    assert seen.link_disputes == {FIRST_LYING_STEP: [{LIAR, VICTIM}]}
    assert seen.named("slowed", "expelled", "absent") == {}


def test_a_liar_that_keeps_its_values_from_another_one_in_every_step_is_out_when_that_is_half() -> None:
    """[F1, F3] Three of five."""
    seen = run_world(plan(), KeepsFromOne(peer_ids(1, 5)[1:]))
    _never_again(seen)
    assert [pair for pairs in seen.link_disputes.values() for pair in pairs] == [{LIAR, 3}, {LIAR, 4}, {LIAR, 1}]
    assert seen.named("slowed") == {FIRST_LYING_STEP + 2: [LIAR]}, "more disputes than liars, or bad links"
    assert seen.named("expelled") == {FIRST_LYING_STEP + 2: [LIAR]}
    assert seen.named("absent") == {}


@pytest.mark.parametrize("lies", [_ClaimsIncomplete(), _HidesViews()], ids=["claims", "hides"])
def test_a_liar_that_makes_everyone_wait_without_naming_anybody_is_out_after_three_strikes(lies: LiarScript) -> None:
    """[F3] Views that say that something is missing, or no views at all."""
    seen = run_world(plan(), lies)
    _never_again(seen)
    assert seen.named("slowed") == {FIRST_LYING_STEP + k: [LIAR] for k in range(3)}
    assert seen.named("expelled") == {FIRST_LYING_STEP + 2: [LIAR]}
    assert seen.link_disputes == {}


def test_a_liar_that_lets_everything_come_late_is_out_before_long() -> None:
    """[F1, F3] Up to four times as long as it may take: to some in time, to others not."""
    seen = run_world(plan(behaviours=["late"], steps=7, seed=18)).check_promises()
    assert seen.named("expelled").popitem()[1] == [LIAR]
    assert max(seen.slow_steps()) <= min(seen.named("expelled"))
    assert min(seen.named("expelled")) < 5


class _NonsenseFirst(_Shuns):
    """Sends nothing to the victim; to the others two frames of nonsense before each value, which they relay in its place."""

    def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        if isinstance(packet.frame, Value) and packet.slot.step >= FIRST_LYING_STEP and to != self._victim:
            for number in range(2):
                link.send_unchanged(to, Packet(packet.slot, Value(Envelope(b"nonsense %d" % number, bytes(64)))))
        return super().sends(link, to, packet)


def test_nonsense_is_not_relayed_in_place_of_the_truth() -> None:
    """[F2, F3] Else the victim misses a value that all others have, names one whom they serve it with, and is struck."""
    seen = run_world(plan(network=Network()), _NonsenseFirst(peer_ids(1, 5)[VICTIM])).check_promises()
    assert seen.slow_steps().keys() == {FIRST_LYING_STEP}


class _ChainsEarly(_NamesNobody):
    """Passes a value on as if its rounds had begun, and hands its view out later, but in time."""

    def __init__(self) -> None:
        self._began: dict[Slot, float] = {}
        self.chains = 0

    def hears(self, link: LiarLink, sender: PeerId, packet: Packet) -> bool:
        if isinstance(packet.frame, Value) and packet.slot.step >= FIRST_LYING_STEP:
            envelope = packet.frame.envelope
            signed = chain_bytes(packet.slot, sender, blob_digest(envelope.payload))
            chained = Chained(sender, envelope, {link.me: link.identity.sign(signed)})
            for to in peer_ids(1, 5):
                if to != link.me:
                    link.send_unchanged(to, Packet(packet.slot, chained))
                    self.chains += 1
        return super().hears(link, sender, packet)

    def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        self._began.setdefault(packet.slot, link.now())
        return super().sends(link, to, packet)

    def lies(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        if isinstance(packet.frame, View):
            allowed = {Phase.COMMIT: 2.0, Phase.CLIP: 9.0, Phase.REVEAL: 3.0, Phase.REPORT: 3.0, Phase.ACCUSE: 1.0}
            since = link.now() - self._began.get(packet.slot, link.now())
            link.send_later(allowed[Phase(packet.slot.phase)] + 3.1 - since, to, packet)
            return ()
        return (packet,)


def test_a_chain_before_its_time_and_a_view_just_in_time_force_no_slow_path() -> None:
    """[Q4] Else it would be for nothing: nobody could say that the view was late."""
    lies = _ChainsEarly()
    seen = run_world(plan(), lies).check_promises()
    assert lies.chains
    assert seen.slow_steps() == {}


class _SplitsViews(_NamesNobody):
    """Signs for every other member that something is missing; two such liars take turns."""

    def __init__(self, everyone: list[PeerId], *wrong: bytes | None) -> None:
        self._everyone, self._wrong = everyone, wrong

    def lies(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        if isinstance(packet.frame, View) and (self._everyone.index(to) - self._everyone.index(link.me)) % 2 == 0:
            views = [signed_view(link.identity, packet.slot, values) for values in self._wrong]
            return [Packet(packet.slot, view) for view in views]
        return (packet,)


@pytest.mark.long
@pytest.mark.parametrize("behaviour", ["splits", "splits, with two wrong views each", "names itself"])
def test_no_liar_can_force_slow_paths_for_ever(behaviour: str) -> None:
    """[F3] Not two together, and not with itself as an excuse."""

    class NamesItself(_ClaimsIncomplete):
        def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
            if isinstance(message, Accuse):
                return structs.replace(message, unheard=(me,), incomplete=())
            return message

    if behaviour.startswith("splits"):
        wrong = (None, bytes(32)) if "two" in behaviour else (None,)
        seen = run_world(plan(peers=7, liars=(0, 1)), _SplitsViews(peer_ids(1, 7), *wrong))
    else:
        seen = run_world(plan(), NamesItself())
    seen.check_promises()
    assert max(seen.slow_steps(), default=0) < FIRST_LYING_STEP + 3


@pytest.mark.long
def test_a_known_link_dispute_costs_no_time() -> None:
    """[F2] An owner need not wait for a part that others hand round to come over the disputed link."""
    seen = run_world(plan(steps=9, network=Network(latency=0.05)), _Shuns(peer_ids(1, 5)[VICTIM])).check_promises()
    assert max(seen.seconds[FIRST_LYING_STEP + 2 :]) < 2.0
