"""Opening moves of the adversary: values, chains and replays that are planned before the announcement begins."""

from functools import partial
from random import Random
from typing import TYPE_CHECKING, cast

from tests.protocol.broadcast.announcement.second_view_lies import Signed
from tests.protocol.broadcast.announcement.setting import DELTA, EARLIER_SLOT, INSTANT, KEY_OF, SLOT, Key, sealed
from troth.crypto import blob_digest
from troth.protocol.broadcast.announcement import chain_bytes, values_digest, view_bytes
from troth.protocol.wire.frames import Agreement as Frame
from troth.protocol.wire.frames import Certificate, Chained, Value, View
from troth.protocol.wire.messages import Envelope

if TYPE_CHECKING:
    from tests.protocol.broadcast.announcement.adversary import Adversary
    from tests.protocol.broadcast.announcement.world import HonestMember


class Openings:
    """Moves that liars plan before the announcement begins."""

    def __init__(self, adversary: "Adversary") -> None:
        self._adversary = adversary
        self._world, self._draw, self._liars = adversary.world, adversary.draw, adversary.liars

    def plan(self) -> None:
        for liar in self._liars:
            self._plan_values(liar)
            self._plan_early_chains(liar)
        if self._liars and self._draw.random() < 0.3:
            self._plan_replays()
        if self._world.departures is not None and self._liars:
            draw = self._world.departures.draw
            for member in self._world.honest:
                if draw.random() < 0.5:
                    when = draw.uniform(0, member.timing.views_due + 2 * DELTA)
                    self._world.at(when, partial(self._name_honest_as_gone, draw, member))

    def _name_honest_as_gone(self, draw: Random, member: "HonestMember") -> None:
        """Name honest members as gone, to this one or another: in views, and in certificates that liars and others signed."""
        collected, values = self._adversary.collected, self._adversary.values
        world, liar = self._world, draw.choice(self._liars)
        honest = [other.peer for other in (*world.honest, *world.crashing)]
        number = draw.choice([1, 1, len(honest), len(honest), draw.randint(1, len(honest))])
        gone = tuple(sorted(draw.sample(honest, number)))
        digests = {key.peer: blob_digest(values[key.peer][0].payload) for key in self._liars}
        digests |= {m.peer: blob_digest(m.envelope.payload) for m in (*world.honest, *world.crashing)}
        signed: Signed = (values_digest({peer: digests[peer] for peer in digests if peer not in gone}), gone, ())
        views = collected.views.setdefault(signed, {})
        views.update({key.peer: key.sign(view_bytes(SLOT, *signed)) for key in self._liars})
        to = draw.choice([member, member, draw.choice(world.honest)])
        world.deliver(to, liar.peer, View(signed[0], views[liar.peer], gone))
        if draw.random() < 0.7:
            chain = collected.chain(b"", cast(bytes, signed[0]), 1)
            world.deliver(to, liar.peer, collected.certificate(signed, chain))

    def _plan_values(self, liar: Key) -> None:
        draw, (v, w, x) = self._draw, self._adversary.values[liar.peer]
        mode = draw.choice(["fair", "silent", "some", "split", "double", "last", "triple", "resigned"])
        if self._adversary.theme in ("hidden", "early") and draw.random() < 0.8:
            mode = draw.choice(["fair", "fair", "last", "resigned"])
        if self._adversary.theme == "second" and draw.random() < 0.7:
            mode = draw.choice(["fair", "some", "one", "silent"])
        if self._adversary.leaver is not None:
            mode = "silent" if liar is self._adversary.leaver else "fair"
        if breakers := self._adversary.second_views.breakers:  # the truth, mostly: else nobody would sign second views
            mode = draw.choice(["fair", "fair", "resigned"])
            if self._adversary.theme == "split" and liar not in breakers:
                mode = draw.choice(["split", "some", "fair"])
        for member in self._world.honest:
            due = member.timing.values_due
            early = draw.uniform(0, due - INSTANT)
            moment = draw.choice([early, early, due - INSTANT, due, due + INSTANT])
            match mode:
                case "fair":
                    chosen = [(v, early)]
                case "silent":
                    chosen = []
                case "one":
                    chosen = [(v, early)] if member is self._adversary.one else []
                case "some":
                    chosen = [(v, moment)] if draw.random() < 0.5 else []
                case "split":
                    chosen = [(draw.choice([v, w]), moment)]
                case "double":
                    chosen = [(v, early)] + ([(w, moment)] if draw.random() < 0.5 else [])
                case "last":
                    chosen = [(v, draw.choice([due - INSTANT, due, due + INSTANT]))]
                case "resigned":
                    chosen = [(sealed(liar, v.payload, nonce=self._adversary.nonce()), early)]
                case _:
                    chosen = [(one, draw.uniform(0, due)) for one in draw.sample([v, w, x], draw.randint(1, 3))]
            for envelope, when in chosen:
                self._adversary.send(when, liar, member, Value(envelope))

    def _plan_early_chains(self, liar: Key) -> None:
        draw = self._draw
        if (
            draw.random() > {"early": 0.9, "hidden": 0.3}.get(self._adversary.theme, 0.4)
            or self._adversary.leaver is not None
        ):
            return
        for member in self._adversary.some() if draw.random() < 0.7 else [self._adversary.one]:
            timing = member.timing
            due = timing.views_due - DELTA
            early = [0.0, draw.uniform(0, timing.values_due), timing.values_due, due - INSTANT]
            late = [due, due + INSTANT, draw.uniform(due, timing.views_due), timing.views_due - INSTANT]
            self._world.at(draw.choice([*early, *late]), partial(self._release_early, member, liar))

    def _release_early(self, member: "HonestMember", liar: Key) -> None:
        """Send a chain as if rounds had begun, on anybody's value that is there by now."""
        said = [(key.peer, envelope) for key in self._liars for envelope in self._adversary.values[key.peer]]
        said += [(other.peer, other.envelope) for other in self._world.honest if other.says_at < self._world.now]
        originator, envelope = self._draw.choice(said)
        chain = self._adversary.collected.chain(originator, blob_digest(envelope.payload), 1)
        self._world.deliver(member, liar.peer, Chained(originator, envelope, chain))

    def _plan_replays(self) -> None:
        """Replay what honest members signed for another slot, and invent what nobody signed."""
        draw = self._draw
        victim = draw.choice(self._world.honest)
        liar = draw.choice(self._liars)
        old = sealed(victim.key, b"said elsewhere", EARLIER_SLOT)
        digest = blob_digest(old.payload)
        chain: dict[bytes, bytes] = {k.peer: k.sign(chain_bytes(SLOT, victim.peer, digest)) for k in self._liars}
        views: dict[bytes, bytes] = {
            peer: KEY_OF[peer].sign(view_bytes(EARLIER_SLOT, digest)) for peer in self._world.everyone
        }
        frames: list[Frame] = [
            Chained(victim.peer, old, chain),
            Chained(victim.peer, Envelope(b"never said", draw.randbytes(64)), chain),
            Value(old),
            View(digest, victim.key.sign(view_bytes(EARLIER_SLOT, digest))),
            Certificate(digest, views, chain),
        ]
        for member in self._world.honest:
            for frame in frames:
                if draw.random() < 0.4:
                    self._adversary.send(draw.uniform(0, member.timing.views_due + 4), liar, member, frame)
