"""A stranger whose contacts lie, all but one: it comes to the right state or to a refusal, to no wrong state (SPEC J1, J2, J8).

`python -m tests.protocol.recovery.lying_contacts --seeds 0..500` counts how they end; a wrong one is exit code 1. The stranger is
real code from its first question to the model in its hands, and again some steps later, when aggregates bring it up to date. Its
contacts answer from a run that was played before: the honest one as a member does whose run goes on meanwhile, liars with one
or several kinds of lies. They are as many as there can be without ever having been a quorum, of the founders or of the members
after any step: whoever was one can sign a history of its own. With the honest one they are a quorum, or refusal is all there
is; nobody else can be reached.
"""

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import msgspec
import torch

from tests.protocol.recovery.certified_records import signed_again
from tests.protocol.scripted_world import plan, run_world
from troth.crypto import Digest, Identity, PeerId, Slot, Stream, derive, stream
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.serving import Served
from troth.protocol.core.records import decode_record, encode_record
from troth.protocol.core.roles import SeededEntropy
from troth.protocol.core.roster import CommonState, Roster
from troth.protocol.core.run import CannotGoOnError
from troth.protocol.core.state import Peer, State
from troth.protocol.recovery.following import FRESH, confirmed, shown_history, tip_bytes
from troth.protocol.recovery.member import Member
from troth.protocol.recovery.models import served_aggregate
from troth.protocol.wire.frames import (
    CertifiedRecord,
    ChunkShown,
    ChunkWanted,
    Frame,
    HistoryShown,
    HistoryWanted,
    Packet,
    StateIndex,
    StateWanted,
    SyncShown,
    SyncWanted,
    TipSigned,
    TipWanted,
)
from troth.protocol.wire.messages import Phase
from troth.training.work import Training
from troth.workshop.chaos.virtual_time import VirtualLink, VirtualTime
from troth.workshop.chaos.world import BOUNDS, World
from troth.workshop.simulation.gradients import same_bits
from troth.workshop.simulation.primitives import MemoPrimitives

FOUNDERS, STEPS, PROBATION, CONTENT_EVERY = 5, 40, 8, 4
LATECOMER = FOUNDERS + 2  # wins a slot late in the run; its key is the stranger's
STEP_S = 4.0  # seconds between two steps of the honest contact's run
_LONG_AGO = 3  # steps from the beginning
_SLOWEST = 1.5  # seconds that answers of the honest contact take, at most
MODELS = 2  # that the stranger has to come to: a whole one, then the next by aggregates
TOOLS = MemoPrimitives()

Lie = Callable[["Liar", "Frame"], Sequence[Frame] | None]  # answers; None: it is honest about this


@cache
def world() -> World:
    """A run that took in a stranger, banned one that lied, and has another on probation in the end."""
    strangers = {FOUNDERS: (0.5, "honest"), FOUNDERS + 1: (0.8, "turns"), LATECOMER: (50.0, "honest")}
    made = dataclasses.replace(plan(liars=(), steps=STEPS), byzantine=1, probation=PROBATION, strangers=strangers)
    return run_world(dataclasses.replace(made, content_every=CONTENT_EVERY)).world


@cache
def identities() -> dict[PeerId, Identity]:
    everyone = [Identity.from_secret(derive(1, "identity", number)) for number in range(LATECOMER + 1)]
    return {identity.peer: identity for identity in everyone}


@cache
def certified() -> tuple[CertifiedRecord, ...]:
    return tuple(
        CertifiedRecord(encode_record(made.record), {bytes(p): bytes(s) for p, s in after.certificate.items()})
        for made, after in pairwise(world().witness)
    )


@cache
def first_step() -> int:
    """The step after which the stranger has its slot, and asks."""
    key = list(identities())[LATECOMER]
    return next(o.record.step for o in world().witness if key in o.state.roster.door.keys)


def state_after(step: int) -> State[Training]:
    return world().witness[step].state


@cache
def served() -> Mapping[Digest, Served]:
    """Models and aggregates of the whole run, by the digests that records name."""
    work, found = world().work, dict[Digest, Served]()
    for outcome in world().witness:
        training, kept = outcome.state.training, outcome.state.audit_records[outcome.record.step]
        found[work.digest(training)] = Served(partial(work.index, training), partial(work.chunk, training))
        found[Digest(outcome.record.aggregates)] = served_aggregate(kept.aggregate_D, kept.bounds)
    return found


def history(since: int, at: int) -> HistoryShown:
    """What an honest member shows when this is its last certified record."""
    changes = [one for one in certified()[since:at] if decode_record(one.record).changes_roster]
    state = state_after(at)
    standing = state.common
    return shown_history(changes, certified()[at], standing, 64)


def honest(who: Identity, frame: Frame, at: int) -> list[Frame]:
    """A member's answer when this is its last certified record."""
    match frame:
        case HistoryWanted(since=since):
            return [history(since, at)]
        case TipWanted(nonce=nonce, step=step, digest=digest) if confirmed(certified()[: at + 1], 0, frame, TOOLS):
            about = Slot(world().run.id, step, Phase.REJOIN)
            return [TipSigned(nonce, who.sign(tip_bytes(about, who.peer, nonce, Digest(digest))))]
        case SyncWanted(since=since) if since <= at:
            return [SyncShown(certified()[since : at + 1])]
        case StateWanted(digest=digest) if (found := served().get(Digest(digest))) is not None:
            return [StateIndex(digest, found.index)]
        case ChunkWanted(digest=digest, number=number) if (found := served().get(Digest(digest))) is not None:
            chunk = found.chunk(number)
            return [] if chunk is None else [ChunkShown(digest, number, chunk)]
    return []


# Lies


@dataclass
class Liar:
    """A contact that lies in these ways; about everything else it tells the truth."""

    who: Identity
    fellows: Sequence[Identity]  # who sign for each other
    kinds: Sequence[str]
    draw: Stream
    at: int = 0  # last record of the run by now
    heard: list[TipSigned] = dataclasses.field(default_factory=list)

    def answers(self, frame: Frame, at: int) -> list[Frame]:
        self.at = at
        for kind in self.kinds:
            lie = LIES[kind](self, frame)
            if lie is not None:
                return list(lie)
        return honest(self.who, frame, at)

    def pick(self, count: int) -> int:
        return int(self.draw.integers(count, 1)[0])

    def flipped(self, raw: bytes) -> bytes:
        place = self.pick(len(raw))
        return raw[:place] + bytes([raw[place] ^ 1 << self.pick(8)]) + raw[place + 1 :]

    def signs(self, frame: TipWanted, who: Identity) -> TipSigned:
        about = Slot(world().run.id, frame.step, Phase.REJOIN)
        return TipSigned(frame.nonce, who.sign(tip_bytes(about, who.peer, frame.nonce, Digest(frame.digest))))


def _old(liar: Liar, frame: Frame) -> Sequence[Frame] | None:
    """The past as if it were now; whatever is asked about is said to be part of it."""
    match frame:
        case HistoryWanted(since=since):
            return [history(min(since, 1), liar.pick(_LONG_AGO if liar.pick(2) else liar.at))]
        case TipWanted():
            return [liar.signs(frame, liar.who)]
        case SyncWanted(since=since):
            return [SyncShown(certified()[since : min(liar.at, since + liar.pick(8)) + 1])]
    return None


def _forged(liar: Liar, frame: Frame) -> Sequence[Frame] | None:
    """Records that nobody but this liar signed, or nobody at all."""
    return _with_records(liar, frame, [liar.who] if liar.pick(2) else [])


def _fork(liar: Liar, frame: Frame) -> Sequence[Frame] | None:
    """Records of another history, signed by all liars, who confirm it too."""
    if isinstance(frame, TipWanted):
        return [liar.signs(frame, liar.who)]
    return _with_records(liar, frame, liar.fellows)


def _with_records(liar: Liar, frame: Frame, signers: Sequence[Identity]) -> Sequence[Frame] | None:
    def another(signed: CertifiedRecord) -> CertifiedRecord:
        record = decode_record(signed.record)
        changes: list[dict[str, Any]] = [
            {"randomness": bytes(32)},
            {"state_after": bytes(32), "content": True},
            {"members": tuple(sorted(who.peer for who in liar.fellows))},
            {"standing": bytes(32)},
            {"admitted": (), "step": record.step + 1},
        ]
        forged = signed_again(signed, signers, world().run, **changes[liar.pick(len(changes))])
        # Right signatures under another record beside its own.
        return CertifiedRecord(forged.record, {**signed.signatures, **forged.signatures})

    match frame:
        case HistoryWanted(since=since):
            right = history(since, liar.at)
            tip = None if right.tip is None else another(right.tip)
            changes = tuple(another(one) if not liar.pick(2) else one for one in right.changes)
            return [
                [msgspec.structs.replace(right, tip=tip)],
                [msgspec.structs.replace(right, changes=changes)],
                [msgspec.structs.replace(right, changes=right.changes[1:])],
                [right, msgspec.structs.replace(right, tip=tip)],
            ][liar.pick(4)]
        case SyncWanted(since=since) if since <= liar.at:
            shown = certified()[since : liar.at + 1]
            return [SyncShown((*shown[:-1], another(shown[-1])), waits=bool(liar.pick(2)))]
    return None


def _standing(liar: Liar, frame: Frame) -> Sequence[Frame] | None:
    """A right record, and beside it something else in common than it names."""
    if not isinstance(frame, HistoryWanted):
        return None
    right, state = history(frame.since, liar.at), state_after(liar.at)
    other = CommonState(state.roster, state.scales, Digest(bytes(32)), state.earlier_randomness)
    fewer = dataclasses.replace(state.roster, byzantine=0, strikes=((1, liar.who.peer),))
    lies = (
        other.encode(),
        dataclasses.replace(other, roster=fewer).encode(),
        liar.flipped(right.standing or b"none"),
        history(0, liar.pick(liar.at)).standing,
    )
    return [msgspec.structs.replace(right, standing=lies[liar.pick(len(lies))])]


def _state(liar: Liar, frame: Frame) -> Sequence[Frame] | None:
    """Another model: under its own index, or chunk by chunk under the right one. Aggregates come alike, so they are lied about
    too."""
    other = list(served().values())[liar.pick(len(served()))]
    match frame:
        case StateWanted(digest=digest) if liar.pick(2):
            return [StateIndex(digest, other.index if liar.pick(2) else liar.flipped(other.index))]
        case ChunkWanted(digest=digest, number=number):
            right = served()[Digest(digest)].chunk(number) if Digest(digest) in served() else None
            blobs = (right, other.chunk(0), memoryview(bytes(len(right or b""))), memoryview(b""))
            blob = blobs[liar.pick(len(blobs))]
            return [] if blob is None else [ChunkShown(digest, number, memoryview(liar.flipped(bytes(blob) or b"0")))]
    return None


def _aggregates(liar: Liar, frame: Frame) -> Sequence[Frame] | None:
    """The aggregates of another step, or nothing but zeros, with an index that fits them."""
    named = {Digest(outcome.record.aggregates): outcome for outcome in world().witness}
    if not isinstance(frame, StateWanted | ChunkWanted) or Digest(frame.digest) not in named:
        return None
    kept = named[Digest(frame.digest)].state.audit_records[named[Digest(frame.digest)].record.step]
    other = served_aggregate(torch.zeros_like(kept.aggregate_D), kept.bounds)
    if isinstance(frame, StateWanted):
        return [StateIndex(frame.digest, other.index)] if liar.pick(2) else None
    chunk = other.chunk(frame.number)
    return [] if chunk is None else [ChunkShown(frame.digest, frame.number, chunk)]


def _nonce(liar: Liar, frame: Frame) -> Sequence[Frame] | None:
    """Signatures of its fellows as its own, for other numbers and records, and each of them often."""
    if not isinstance(frame, TipWanted):
        return None
    said = [liar.signs(frame, who) for who in liar.fellows]
    elsewhere = msgspec.structs.replace(frame, nonce=bytes(32), step=max(0, frame.step - 1))
    liar.heard.append(liar.signs(elsewhere, liar.who))
    again = [TipSigned(frame.nonce, old.signature) for old in liar.heard[-4:]]
    return [*said, *said, *again, TipSigned(frame.nonce, bytes(64)), *liar.heard[-1:]]


def _silent(liar: Liar, _frame: Frame) -> Sequence[Frame] | None:
    """Nothing; or something now and then, so that it is asked again."""
    return None if liar.who.peer[0] % 2 and not liar.pick(4) else []


LIES: Mapping[str, Lie] = {
    "old tip": _old,
    "forged records": _forged,
    "fork": _fork,
    "standing": _standing,
    "state": _state,
    "aggregates": _aggregates,
    "nonce": _nonce,
    "silence": _silent,
}


# The stranger


@dataclass(frozen=True)
class End:
    """How it ended: the states that it held one after the other, the first still without its model, and why it stopped."""

    states: tuple[State[Training], ...]
    at: tuple[int, ...]  # last records of the honest contact by then
    refusal: CannotGoOnError | None

    @property
    def verdict(self) -> str:
        if not all(map(self._is_right, self.states, self.at)):
            return "wrong"
        return "right" if self.refusal is None else "refused"

    def _is_right(self, state: State[Training], at: int) -> bool:
        """Whether members held exactly this after one of their last records."""
        step = state.step - 1
        if not at - FRESH < step <= at:
            return False
        right, follows = state_after(step), state is self.states[0]
        held = dataclasses.replace(right, training=state.training, model=state.model, audit_records={}, last=state.last)
        held_names, names = sorted(state.training.named.items()), sorted(right.training.named.items())
        same_names = [name for name, _ in held_names] == [name for name, _ in names]  # a download has another order
        same_vectors = all(same_bits(one, other) for (_, one), (_, other) in zip(held_names, names, strict=False))
        same = same_names and same_vectors and state.model == right.model
        known = dataclasses.replace(state, audit_records={}) == held and _record(state) == _record(right)
        return known and (same or follows)


def _record(state: State[Training]) -> bytes:
    assert state.last is not None
    return encode_record(state.last.record)


def contacts_of(seed: int) -> tuple[list[Liar], Identity]:
    """The liars among the contacts, each with up to three kinds of lies, and the honest one."""
    draw, roster = stream(derive(seed, "contacts"), "contacts"), state_after(first_step()).roster
    order = [roster.members[k] for k in draw.permutation(len(roster.members))]
    late = [peer for peer in order[1:] if peer not in world().run.founders]
    keys = [*late, *(peer for peer in order[1:] if peer not in late)][: roster.quorum - 1]
    rosters = [Roster.founding(world().run), *(state_after(step).roster for step in range(first_step() + 1))]
    while any(len(set(keys) & set(one.members)) >= one.quorum for one in rosters):
        keys.pop()
    member, liars = identities()[order[0]], [identities()[key] for key in keys]
    names = list(LIES)
    kinds = [[names[k] for k in draw.sample(len(names), 1 + int(draw.integers(3, 1)[0]))] for _ in liars]
    if seed % 3 == 0:  # all in one way
        kinds = [[names[seed // 3 % len(names)]] for _ in liars]
    pairs = enumerate(zip(liars, kinds, strict=True))
    return [Liar(w, liars, ks, stream(derive(seed, "liar", n), "lies")) for n, (w, ks) in pairs], member


def play(seed: int) -> End:
    """Let a stranger come to these contacts."""
    me = identities()[list(identities())[LATECOMER]]
    liars, member = contacts_of(seed)
    slow = _SLOWEST * float(stream(derive(seed, "delay"), "delay").uniform(1)[0])  # so that liars are heard first
    run, time = world().run, VirtualTime[Any](lambda sender, *_: (slow if sender == member.peer else 0.05,))
    states, places = list[State[Training]](), list[int]()

    def at() -> int:
        return min(len(certified()) - 1, first_step() + int(time.now / STEP_S))

    async def comes() -> None:
        link = time.link(me.peer)

        def opened(key: Identity) -> BroadcastChannel:
            return BroadcastChannel(key, link, BOUNDS, TOOLS, observing=True)

        first, work = world().work.first(derive(1, "model")), world().work
        peer = Peer(me, run, work, opened(me), SeededEntropy(0, 0), TOOLS)
        joining = Joining(peer, State.first(run, first, work.digest(first)), opened)
        async for state in joining.states():
            states.append(state)
            places.append(at())

    async def answers(link: VirtualLink, said: Callable[[Frame, int], list[Frame]]) -> None:
        while (heard := await link.receive(1e7)) is not None:
            for answer in said(heard[1].frame, at()):
                link.send(heard[0], Packet(heard[1].slot, answer))

    coroutines: dict[PeerId, Any] = {me.peer: comes()}
    for liar in liars:
        coroutines[liar.who.peer] = answers(time.link(liar.who.peer), liar.answers)
    coroutines[member.peer] = answers(time.link(member.peer), partial(honest, member))
    time.run(coroutines, most_events=400_000, until=[me.peer])
    return End(tuple(states), tuple(places), time.stopped.get(me.peer))


class Joining(Member[Training]):
    """The way in: to a record, to its model, and on to the next one as after a step that it missed."""

    async def states(self) -> AsyncIterator[State[Training]]:
        channel = self._open_channel(self.peer.identity)
        await self._follow_from_the_founders(channel, None)
        yield self.state
        for _ in range(MODELS):
            await self._catch_up(self._open_channel(self.peer.identity))
            yield self.state


def main() -> int:
    parser = argparse.ArgumentParser(description="Let strangers come to contacts that lie, all but one.")
    parser.add_argument("--seeds", default="0..500", help="A..B, from A to before B")
    first, last = map(int, parser.parse_args().seeds.split(".."))
    torch.set_num_threads(1)
    counts, by_kind = Counter[str](), Counter[tuple[str, str]]()
    for seed in range(first, last):
        end = play(seed)
        counts[end.verdict] += 1
        by_kind.update({(kind, end.verdict) for liar in contacts_of(seed)[0] for kind in liar.kinds})
        if end.verdict == "wrong":
            print(f"seed {seed}: wrong, after {[liar.kinds for liar in contacts_of(seed)[0]]}", flush=True)
    print(", ".join(f"{counts[verdict]} {verdict}" for verdict in ("right", "refused", "wrong")))
    for kind in LIES:
        print(f"  {kind}: " + ", ".join(f"{by_kind[kind, v]} {v}" for v in ("right", "refused", "wrong")))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
