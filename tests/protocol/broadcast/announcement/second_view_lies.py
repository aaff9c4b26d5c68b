"""Lies about second views: liars that break off after they spoke, and sign, keep, replay and hand out second views (SPEC Q9)."""

from functools import partial
from random import Random
from typing import TYPE_CHECKING, cast

from tests.protocol.broadcast.announcement.setting import DELTA, EARLIER_SLOT, INSTANT, SLOT, Key
from troth.crypto import blob_digest
from troth.protocol.broadcast.announcement import values_digest, view_bytes
from troth.protocol.wire.frames import Agreement as Frame
from troth.protocol.wire.frames import Certificate, Relayed, View

if TYPE_CHECKING:
    from tests.protocol.broadcast.announcement.adversary import Adversary
    from tests.protocol.broadcast.announcement.world import HonestMember

Signed = tuple[bytes | None, tuple[bytes, ...], tuple[bytes, ...]]  # content of a view: values, missing, broken off

_MODES = ("none", "none", "one", "last", "some", "all", "garbage", "other list")


class SecondViewLies:
    """The part of the adversary that is about second views, drawn from a generator of its own."""

    def __init__(self, adversary: "Adversary") -> None:
        world = adversary.world
        self._adversary, self._world = adversary, world
        self.draw = draw = Random(f"second views {world.seed}")
        self._modes = {key.peer: draw.choice(_MODES) for key in adversary.liars}
        self.breakers = self._breakers()
        if self.breakers:
            if draw.random() < 0.5:  # all keep their second views for later
                self._modes = dict.fromkeys(self._modes, "none")
            hidden, open_ = ["none", "none", "one", "last", "split", "incomplete"], ["all", "all", "one", "last"]
            adversary.view_mode = {
                key.peer: draw.choice(hidden if key in self.breakers else open_) for key in adversary.liars
            }

    def _breakers(self) -> list[Key]:
        """Sometimes some liars speak, and all break off at one moment, before their views."""
        liars, draw = self._adversary.liars, self.draw
        able = self._world.departures is not None and liars and self._adversary.leaver is None
        most = draw.choice([len(liars), max(1, len(liars) - 1)])
        return draw.sample(liars, draw.randint(1, most)) if able and draw.random() < 0.5 else []

    # Moves that are planned

    def plan(self) -> None:
        if self._world.departures is None or not self._adversary.liars:
            return
        if self.breakers:
            self._plan_breaking_off()
        for member in self._world.honest:
            if self.draw.random() < 0.4:
                when = self.draw.uniform(0, member.timing.views_due + 2 * DELTA)
                self._world.at(when, partial(self._name_honest, member))
        if self.draw.random() < 0.3:
            self._plan_replays()

    def _plan_breaking_off(self) -> None:
        draw, world = self.draw, self._world
        first = world.honest[0].timing
        together = draw.choice([draw.uniform(0, first.views_due), first.values_due, first.views_due - DELTA])
        towards_all, keys = draw.random() < 0.7, [key.peer for key in self.breakers]
        for member in world.honest:
            if towards_all or draw.random() < 0.5:
                when = together if draw.random() < 0.7 else together + draw.random() * DELTA
                world.at(when, partial(world.notice, member, *keys, gone=True))
                if draw.random() < 0.2:
                    world.at(when + draw.random() * 2, partial(world.notice, member, *keys, gone=False))

    def _name_honest(self, member: "HonestMember") -> None:
        """Say of honest members that they broke off: in second views of right and wrong values, and in certificates of them."""
        adversary, draw, world = self._adversary, self.draw, self._world
        honest = [other.peer for other in (*world.honest, *world.crashing)]
        named = honest if draw.random() < 0.5 else draw.sample(honest, draw.randint(1, len(honest)))
        said = {key.peer: adversary.values[key.peer][draw.choice([0, 0, 1])] for key in adversary.liars}
        said |= {one.peer: one.envelope for one in (*world.honest, *world.crashing)}
        values = values_digest({peer: blob_digest(envelope.payload) for peer, envelope in said.items()})
        signed: Signed = (values, (), tuple(sorted(named)))
        self._sign(signed, adversary.liars)
        liar = draw.choice(adversary.liars)
        view = View(values, adversary.collected.views[signed][liar.peer], (), signed[2])
        to = draw.choice([member, member, draw.choice(world.honest)])
        world.deliver(to, liar.peer, view)
        if draw.random() < 0.7:
            chain = adversary.collected.chain(b"", values, 1)
            world.deliver(to, liar.peer, adversary.collected.certificate(signed, chain))

    def _plan_replays(self) -> None:
        """Replay second views of another slot, first views as second ones, and more second views than anybody has to keep."""
        adversary, draw = self._adversary, self.draw
        liar, one = draw.choice(adversary.liars), (draw.choice(self._world.everyone),)
        digest = draw.randbytes(32)
        frames: list[Frame] = [
            View(digest, liar.sign(view_bytes(EARLIER_SLOT, digest, (), one)), (), one),
            View(digest, liar.sign(view_bytes(SLOT, digest, one)), (), one),
            View(digest, liar.sign(view_bytes(SLOT, digest, (), one)), one),
        ]
        for _ in range(6):
            values = draw.randbytes(32)
            frames.append(View(values, liar.sign(view_bytes(SLOT, values, (), one)), (), one))
        for member in self._world.honest:
            for frame in frames:
                if draw.random() < 0.5:
                    adversary.send(draw.uniform(0, member.timing.views_due), liar, member, frame)

    # Answers

    def answer(self, signed: Signed, first: "HonestMember") -> None:
        """React to the first honest second view of this content: all liars sign it, and send it to whom they like."""
        adversary, world, draw = self._adversary, self._world, self.draw
        able = [key for key in adversary.liars if key.peer not in (*signed[1], *signed[2])]
        self._sign(signed, adversary.liars)
        if draw.random() < 0.5:  # as if these few signatures were enough, and those of liars that broke off counted
            when, liar = world.now + draw.random() * DELTA, draw.choice(adversary.liars)
            few = Certificate(cast(bytes, signed[0]), dict(adversary.collected.views[signed]), {}, signed[1], signed[2])
            adversary.send(when, liar, first, few)
        for liar in able:
            view = self._view(signed, liar)
            for member in world.honest:
                due = member.timing.views_due
                soon, last = draw.uniform(world.now, max(world.now, due)), draw.choice([due - INSTANT, due])
                match self._modes[liar.peer]:
                    case "all":
                        adversary.send(world.now, liar, member, view)
                    case "one" if member is adversary.one:
                        adversary.send(draw.choice([soon, last, due - DELTA - INSTANT]), liar, member, view)
                    case "some" if draw.random() < 0.5:
                        adversary.send(draw.choice([soon, last]), liar, member, view)
                    case "last":
                        adversary.send(last, liar, member, view)
                    case "garbage":
                        adversary.send(soon, liar, member, View(signed[0], draw.randbytes(64), signed[1], signed[2]))
                    case "other list":
                        more = tuple(sorted({*signed[2], draw.choice(world.everyone)} - {*signed[1]}))
                        other: Signed = (signed[0], signed[1], more)
                        self._sign(other, [liar])
                        adversary.send(soon, liar, member, self._view(other, liar))
                    case _:
                        pass
                if liar.peer in member.disputed_links and draw.random() < 0.3:
                    relays = draw.choice(adversary.liars)
                    adversary.send(draw.choice([soon, last]), relays, member, Relayed(liar.peer, view))

    def sees_slow(self, member: "HonestMember") -> None:
        """Its rounds are known now: prepare second views that arrive in the last moment."""
        if member is self._adversary.one and self.breakers and self.draw.random() < 0.5:
            end = member.round_end(self._world.rounds)
            self._world.at(end - INSTANT, partial(self._send_late, member))

    def _send_late(self, member: "HonestMember") -> None:
        for signed in [one for one in self._adversary.collected.views if one[2]]:
            for liar in [key for key in self._adversary.liars if key.peer in self._adversary.collected.views[signed]]:
                self._world.deliver(member, liar.peer, self._view(signed, liar))

    def released(self) -> Signed | None:
        """The content of a second view that all who have to have signed, if liars like to hand out its certificate."""
        views, complete = self._adversary.collected.views, self._adversary.collected.complete
        whole = sorted((signed for signed in views if signed[2] and complete(signed)), key=repr)
        return self.draw.choice(whole) if whole and self.draw.random() < 0.8 else None

    def _sign(self, signed: Signed, liars: list[Key]) -> None:
        views = self._adversary.collected.views.setdefault(signed, {})
        views.update({key.peer: key.sign(view_bytes(SLOT, *signed)) for key in liars})

    def _view(self, signed: Signed, liar: Key) -> View:
        signature = self._adversary.collected.views[signed][liar.peer]
        return View(cast(bytes, signed[0]), signature, signed[1], signed[2])
