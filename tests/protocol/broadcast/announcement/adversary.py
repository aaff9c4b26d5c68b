"""An adversary for one announcement: all liars as one, with a theme and details drawn from the world's seed.

`openings.py` plans its moves before the announcement begins; here it reacts to the frames that it sees.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from tests.protocol.broadcast.announcement.openings import Openings
from tests.protocol.broadcast.announcement.second_view_lies import SecondViewLies, Signed
from tests.protocol.broadcast.announcement.setting import DELTA, INSTANT, SLOT, Key, sealed
from troth.crypto import PeerId, blob_digest
from troth.protocol.broadcast.announcement import chain_bytes, view_bytes
from troth.protocol.wire.frames import Agreement as Frame
from troth.protocol.wire.frames import Certificate, Chained, View
from troth.protocol.wire.messages import MOST_MEMBERS

if TYPE_CHECKING:
    from tests.protocol.broadcast.announcement.world import AnnouncementWorld, HonestMember

_THEMES = ("hidden", "hidden", "second", "split", "early", "chaos", "chaos")


class CollectedSignatures:
    """Signatures that liars have seen or can make: views, and chains on values and certificates."""

    def __init__(self, everyone: Sequence[PeerId], liars: Sequence[Key], draw: Random) -> None:
        self._everyone, self._liars, self._draw = everyone, liars, draw
        self.views: dict[Signed, dict[bytes, bytes]] = {}  # content → signer → signature
        self.chains: dict[tuple[bytes, bytes], dict[bytes, bytes]] = {}  # item → signer → signature

    def complete(self, signed: Signed) -> bool:
        return self.views[signed].keys() >= set(self._everyone) - {*signed[1], *signed[2]}

    def certificate(self, signed: Signed, chain: Mapping[bytes, bytes]) -> Certificate:
        unsigned = {*signed[1], *signed[2]}
        views = {peer: signature for peer, signature in self.views[signed].items() if peer not in unsigned}
        return Certificate(cast(bytes, signed[0]), views, dict(chain), signed[1], signed[2])

    def chain(self, originator: bytes, digest: bytes, number: int) -> dict[bytes, bytes]:
        """A chain: liars' signatures, all that were seen, as few as would do in round `number`, or fewer; sometimes padded."""
        draw = self._draw
        liars: dict[bytes, bytes] = {key.peer: key.sign(chain_bytes(SLOT, originator, digest)) for key in self._liars}
        seen = {**self.chains.get((originator, digest), {}), **liars}
        match draw.choice(["liars", "liars", "all", "enough", "few", "without"]):
            case "liars":
                found: dict[bytes, bytes] = liars
            case "all":
                found = seen
            case "enough":
                found = dict([item for item in seen.items() if item[0] != originator][:number])
            case "few":
                found = dict([item for item in seen.items() if item[0] != originator][: number - 1])
            case _:
                found = {peer: signature for peer, signature in liars.items() if peer != originator}
        padding = draw.random()
        if padding < 0.05:
            found = {**{peer: draw.randbytes(64) for peer in self._everyone}, **found}
        elif padding < 0.06:
            junk = {sha256(b"%d" % k).digest(): bytes(64) for k in range(MOST_MEMBERS - len(found))}
            found = {**junk, **found}
        return found


class Adversary:
    """All liars as one."""

    def __init__(self, world: "AnnouncementWorld") -> None:
        self.world, self.draw = world, world.draw
        self.liars: list[Key] = world.liars
        self.theme = self.draw.choice(_THEMES)
        self.collected = CollectedSignatures(world.everyone, self.liars, self.draw)
        self.values = {
            key.peer: [sealed(key, b"lie %d" % k, nonce=self.nonce()) for k in range(3)] for key in self.liars
        }
        self.view_mode: dict[PeerId, str] = {key.peer: self._view_mode() for key in self.liars}
        self.one = self.draw.choice(world.honest)  # the member on whom everything is tried
        self.draw.random()  # decides nothing; without this draw every seed would be another world
        self.leaver, self.reveals = self._leaver()
        self.second_views = SecondViewLies(self)

    def _leaver(self) -> tuple[Key | None, bool]:
        """Sometimes one liar that says nothing: the others keep their views, or its value, for later."""
        departures = self.world.departures
        if departures is None or len(self.liars) < 2 or departures.draw.random() < 0.5:
            return None, True
        common = departures.draw.choice(["none", "one", "incomplete", "split", "nothing"])
        self.view_mode = dict.fromkeys(self.view_mode, common)
        return departures.draw.choice(self.liars), departures.draw.random() < 0.5

    def nonce(self) -> bytes:
        return bytes(32) if self.draw.random() < 0.8 else self.draw.randbytes(32)

    def _view_mode(self) -> str:
        if self.theme == "hidden":
            return self.draw.choice(["none", "one", "last", "none"])
        return self.draw.choice(["all", "all", "none", "one", "some", "last", "incomplete", "split", "garbage"])

    def plan(self) -> None:
        """Plan the moves before the announcement begins."""
        Openings(self).plan()
        self.second_views.plan()

    def send(self, when: float, liar: Key, to: "HonestMember", frame: Frame) -> None:
        self.world.at(when, lambda: self.world.deliver(to, liar.peer, frame))

    def some(self) -> "list[HonestMember]":
        chosen = [member for member in self.world.honest if self.draw.random() < 0.5]
        return chosen or [self.draw.choice(self.world.honest)]

    def sees(self, member: "HonestMember", frame: Frame) -> None:
        """React to a frame in the moment in which an honest member sends it."""
        if not self.liars:
            return
        match frame:
            case View(values, signature, gone, broken_off) if values is not None:
                signed = (values, gone, broken_off)
                first = signed not in self.collected.views
                self.collected.views.setdefault(signed, {})[member.peer] = signature
                if first and broken_off:
                    self.second_views.answer(signed, member)
                elif first:
                    self._answer_view(signed)
                if self.collected.complete(signed):
                    self._certificate_in_hand(signed)
            case Certificate():
                self.collected.chains.setdefault((b"", frame.values), {}).update(frame.chain)
                signed = (frame.values, frame.gone, frame.broken_off)
                self.collected.views.setdefault(signed, {}).update(frame.views)
            case Chained():
                item = (frame.originator, blob_digest(frame.envelope.payload))
                self.collected.chains.setdefault(item, {}).update(frame.chain)
            case _:
                pass
        if self.theme == "chaos" and self.draw.random() < 0.15:
            self._meddle(frame)

    def _answer_view(self, signed: Signed) -> None:
        draw, world = self.draw, self.world
        values = signed[0]
        for liar in self.liars:
            view = View(values, liar.sign(view_bytes(SLOT, *signed)), signed[1])
            self.collected.views[signed][liar.peer] = view.signature
            nothing = View(None, liar.sign(view_bytes(SLOT, None)))
            for member in world.honest:
                due = member.timing.views_due
                soon, last = (
                    draw.uniform(world.now, max(world.now, due)),
                    draw.choice([due - INSTANT, due - INSTANT, due]),
                )
                match self.view_mode[liar.peer]:
                    case "all":
                        self.send(world.now, liar, member, view)
                    case "one" if member is self.one:
                        self.send(draw.choice([soon, last, due - DELTA - INSTANT]), liar, member, view)
                    case "some" if draw.random() < 0.5:
                        self.send(draw.choice([soon, last]), liar, member, view)
                    case "last":
                        self.send(last, liar, member, view)
                    case "nothing":
                        self.send(world.now, liar, member, nothing)
                    case "incomplete":
                        self.send(soon, liar, member, nothing if draw.random() < 0.5 else view)
                    case "split":
                        other = View(bytes(32), liar.sign(view_bytes(SLOT, bytes(32))))
                        self.send(soon, liar, member, draw.choice([view, nothing, other]))
                    case "garbage":
                        self.send(world.now, liar, member, View(values, draw.randbytes(64)))
                    case _:
                        pass

    def _certificate_in_hand(self, signed: Signed) -> None:
        """Hand everyone's views to one honest member before any of them has them all, on the quiet path."""
        if self.draw.random() < 0.3:
            target = self.one
            moments = [target.timing.views_due - INSTANT, target.timing.views_due - DELTA, self.world.now]
            when = self.draw.choice(moments)
            liar = self.draw.choice(self.liars)
            self.world.at(when, lambda: self.world.deliver(target, liar.peer, self.collected.certificate(signed, {})))

    def sees_slow(self, member: "HonestMember") -> None:
        """Its rounds are known now: prepare frames that arrive in their last moments."""
        if not self.liars:
            return
        draw, rounds = self.draw, self.world.rounds
        for liar in self.liars:
            if self.theme in ("hidden", "second", "chaos", "split") and draw.random() < 0.8:
                self._release_value(member, liar)
        self.second_views.sees_slow(member)
        if self.collected.views and (member is self.one or draw.random() < 0.2):
            number = rounds if draw.random() < 0.5 or self.second_views.breakers else draw.randint(1, rounds)
            when = self._moment(member, number)
            self.world.at(when, lambda: self._release_certificate(member, number))

    def _moment(self, member: "HonestMember", number: int) -> float:
        end = member.round_end(number)
        return self.draw.choice([end - INSTANT, end - INSTANT, end, end - 2 * DELTA * self.draw.random()])

    def _release_value(self, member: "HonestMember", liar: Key) -> None:
        """Release a value, mostly a second one: to all in the first round, or to one in the last moment of another."""
        draw, rounds = self.draw, self.world.rounds
        envelope = self.values[liar.peer][1 if draw.random() < 0.7 else draw.randint(0, 2)]
        if self.leaver is not None:
            if liar is not self.leaver or not self.reveals:
                return
            envelope = self.values[liar.peer][0]
        openly = self.theme == "hidden" and draw.random() < 0.8
        number = 1 if openly else rounds if draw.random() < 0.4 else draw.randint(1, rounds)
        if not openly and member is not self.one and draw.random() < 0.8:
            return
        when = self.world.now + INSTANT if openly else self._moment(member, number)
        sender = draw.choice(self.liars)

        def release() -> None:
            chain = self.collected.chain(liar.peer, blob_digest(envelope.payload), number)
            self.world.deliver(member, sender.peer, Chained(liar.peer, envelope, chain))

        self.world.at(when, release)

    def _release_certificate(self, member: "HonestMember", number: int) -> None:
        draw = self.draw
        signed = self.second_views.released() or draw.choice(sorted(self.collected.views, key=repr))
        chain = self.collected.chain(b"", cast(bytes, signed[0]), number)
        certificate = self.collected.certificate(signed, chain)
        if not self.collected.complete(signed) or draw.random() < 0.1:  # forge what is missing
            views: dict[bytes, bytes] = {
                peer: self.collected.views[signed].get(peer, draw.randbytes(64))
                for peer in self.world.everyone
                if peer not in signed[1] and peer not in signed[2]
            }
            if draw.random() < 0.2 and views:
                views.popitem()
            certificate = Certificate(certificate.values, views, chain, signed[1], signed[2])
        self.world.deliver(member, draw.choice(self.liars).peer, certificate)

    def _meddle(self, frame: Frame) -> None:
        """Pass on a frame that was seen: late, to some, with liars' signatures added."""
        draw, world = self.draw, self.world
        liar = draw.choice(self.liars)
        passed: Frame = frame
        if isinstance(frame, Chained):
            item = (frame.originator, blob_digest(frame.envelope.payload))
            passed = Chained(frame.originator, frame.envelope, {**frame.chain, **self.collected.chain(*item, 2)})
        elif isinstance(frame, Certificate):
            passed = replace(frame, chain={**frame.chain, **self.collected.chain(b"", frame.values, 2)})
        for member in self.some():
            when = world.now + draw.random() * 3
            if member.in_rounds and draw.random() < 0.5:
                when = self._moment(member, draw.randint(1, world.rounds))
            self.send(when, liar, member, passed)
