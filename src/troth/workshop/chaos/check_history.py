"""Histories: honest peers hold one, signed by a majority, with roles that nobody chose; bans in it are of liars, and proved."""

from collections.abc import Iterator

from troth.crypto import Slot, coin_commitment
from troth.evidence.bans import History
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.core.records import StepRecord, encode_record, right_signers
from troth.protocol.core.roles import combine
from troth.protocol.wire.messages import Accuse, ChargeKind, Commit, Phase
from troth.workshop.chaos.world import BOUNDS, World
from troth.workshop.simulation.gradients import same_bits
from troth.workshop.simulation.primitives import MemoPrimitives


def agreement(world: World) -> list[str]:
    """Honest peers hold the same roster, randomness, verdicts and model after every step, bit for bit.

    Records that a peer could not prove, and gave up, count too: if honest peers write different ones, too few sign either, and a
    liar that can repeat this stops the run. A peer that the network fails is beyond what announcements assume (every frame within
    Δ): it may write a record of its own, which nobody signs, and falls out. What it can prove is what the others hold."""
    broken, failed, held = [], world.plan.network.unreached, world.held
    for (step, incarnation), written in sorted(world.written.items()):
        different = sum(not who <= failed for who in written.values())
        if different > 1:
            broken.append(f"step {step}, incarnation {incarnation}: honest peers wrote {different} different records")
    for step in range(world.plan.steps):
        ended = {number: outcomes[step] for number, outcomes in held.items() if step in outcomes}
        ended = {number: one for number, one in ended.items() if number not in failed or _certified(world, one.record)}
        if len({encode_record(outcome.record) for outcome in ended.values()}) > 1:
            broken.append(f"step {step}: honest peers have different records")
        if len({outcome.state.roster for outcome in ended.values()}) > 1:
            broken.append(f"step {step}: honest peers have different rosters")
        models = [outcome.state.training.parameters_D for outcome in ended.values()]
        if any(not same_bits(models[0], model) for model in models[1:]):
            broken.append(f"step {step}: honest peers have different models")
    return broken


def _certified(world: World, record: StepRecord) -> bool:
    """Whether an honest peer could ever prove this record (SPEC U2)."""
    return encode_record(record) in world.histories.get((record.step, record.incarnation), ())


def safety(world: World) -> list[str]:
    """However many honest peers are gone: one history, no step made by liars alone, and no honest ban.

    Other checkers look through the peer that saw the most. This one looks at everything that any honest peer ever held,
    so a peer that was led into a history of its own is found too.
    """
    return [*_several_histories(world), *_made_by_liars(world), *_honest_bans(world)]


def _several_histories(world: World) -> Iterator[str]:
    for (step, incarnation), records in sorted(world.histories.items()):
        if len(records) > 1:
            yield f"step {step}, incarnation {incarnation}: honest peers hold {len(records)} certified records of it"


def _made_by_liars(world: World) -> Iterator[str]:
    tools, checked = MemoPrimitives(), set[tuple[int, bytes]]()
    for number, outcomes in sorted(world.outcomes.items()):
        for step, outcome in sorted(outcomes.items()):
            raw = encode_record(outcome.record)
            if (step, raw) in checked:
                continue
            after = outcomes.get(step + 1)
            if after is None or after.record.incarnation != outcome.record.incarnation:
                continue  # its signatures come with the next step
            checked.add((step, raw))
            assert outcome.state.last is not None
            right = right_signers(world.run.id, step, raw, outcome.state.last.signers, after.certificate, tools)
            if not right.keys() & world.honest:
                yield f"step {step}: no honest peer signed the record that {number} holds"


def _honest_bans(world: World) -> Iterator[str]:
    held = ((number, one.record) for number, outcomes in world.outcomes.items() for one in outcomes.values())
    for number, banned in sorted({(number, peer) for number, record in held for peer in record.banned}):
        if banned in world.honest:
            yield f"{number} holds a record in which {world.numbers[banned]}, who is honest, is banned"


# Signatures: records carry those of a majority, and no honest key signs twice for one slot.


def signed(world: World) -> list[str]:
    """More than half of a step's members signed the record that an honest peer holds of it."""
    broken, tools = [], MemoPrimitives()
    for number, outcomes in sorted(world.held.items()):
        for step, outcome in sorted(outcomes.items()):
            members, raw = outcome.record.members, encode_record(outcome.record)
            after = outcomes.get(step + 1)
            if after is None:
                continue  # its signatures come with the next step
            assert outcome.state.last is not None
            right = right_signers(world.run.id, step, raw, outcome.state.last.signers, after.certificate, tools)
            if 2 * len(right) <= len(members):
                broken.append(
                    f"step {step}: {len(right)} of {len(members)} members signed the record that {number} holds"
                )
    return broken


def slots(world: World) -> list[str]:
    """No honest key signs two messages for one slot, whatever happened to its machine: liars could have it banned."""
    return [
        f"step {slot.step}: {world.numbers[peer]} signed {len(said)} messages for phase {slot.phase}, attempt {slot.attempt}"
        for (peer, slot), said in world.said.items()
        if len(said) > 1
    ]


# Coins: roles follow from coins that were closed while one could still lie, and tossed for this attempt alone.


def coins(world: World) -> list[str]:
    """Coins A are open before reports are made (SPEC R1), and those of Commit are known when an attempt is repeated (SPEC N2)."""
    broken = []
    for outcome in world.witness:
        record, step = outcome.record, outcome.record.step
        slot = Slot(world.run.id, step, Phase.COMMIT, incarnation=record.incarnation)
        for attempt, accuses in outcome.accuses.items():
            opened = {peer: said.message.coin for peer, said in accuses.items() if isinstance(said.message, Accuse)}
            if attempt == outcome.attempts - 1 and combine("roles", step, attempt, opened) != record.randomness:
                broken.append(f"step {step}: the next roles do not follow from coins B")
            for peer in sorted(world.honest & opened.keys() & outcome.commits.keys()):
                commit, coin = outcome.commits[peer].message, opened[peer]
                assert isinstance(commit, Commit)
                if coin_commitment(coin, slot, peer, "A") == commit.coin_a:
                    broken.append(f"step {step}: the coin B of {world.numbers[peer]} was open before reports were made")
                if attempt and coin_commitment(coin, slot, peer, "B") == commit.coin_b:
                    broken.append(f"step {step}: {world.numbers[peer]} tossed no new coin for attempt {attempt}")
    return broken


# Bans: never of the honest, always for good, and each with evidence that verifies offline.


def no_honest_ban(world: World) -> list[str]:
    """No honest peer is banned, whatever liars do and however many peers crash."""
    banned = {peer for record in world.records for peer in record.banned}
    return [f"peer {world.numbers[peer]} is honest and was banned" for peer in sorted(banned & world.honest)]


def bans(world: World) -> list[str]:
    """A banned peer is a member of no later step, under whatever key.

    Else it would go on voting, while the others reckon with one liar less (SPEC T5, B8, G1).
    """
    broken, out, successors = [], set[bytes](), list[tuple[bytes, bytes]]()
    for record in world.records:
        for peer in sorted(out & set(record.members)):
            broken.append(f"step {record.step}: {world.name(peer)} was banned before, and is a member")
        out |= set(record.banned)
        successors += [(rejoin.member, rejoin.key) for rejoin in record.returned]
        for old, new in successors:
            out |= {new} if old in out else set()
    return broken


def evidence(world: World) -> list[str]:
    """Every ban's evidence verifies from its bytes alone and names the banned peer.

    Where it shows what the ban follows from, recomputing that gives the same verdict.
    """
    broken, history, banned = [], History(world.run), set[bytes]()
    for outcome in world.witness:
        for made in history.add(outcome):
            try:
                proof = verify_ban(made.text, world.run.id)
            except UnprovedError as error:
                broken.append(f"step {made.step}: the ban of {world.name(bytes.fromhex(made.file.banned))}: {error}")
                continue
            if proof.exhibit is not None and proof.judgement.kind in (ChargeKind.REPORT, ChargeKind.AGGREGATE):
                found = recompute(proof, None, made.blobs)
                if found is not Recomputed.CONFIRMED:
                    broken.append(f"step {made.step}: the ban of {world.numbers[proof.banned]}: {found.value}")
            if proof.banned not in banned:
                broken.append(f"step {made.step}: the evidence is about somebody else")
            banned.discard(proof.banned)
        broken += [
            f"step {outcome.record.step - 1}: no evidence of the ban of {world.name(peer)}" for peer in sorted(banned)
        ]
        banned = set(outcome.record.banned)
    return broken


# Bounds: nobody can make honest peers send, or hold, without end.

_WAITING = 8  # packets in a second, from every peer to every peer, while some wait for the run to restart
_WORK = 1 << 20  # bytes that honest peers say in a step, with envelopes and certificates


def bounds(world: World) -> list[str]:
    """Packets are bounded by attempts, steps and peers."""
    plan, steps = world.plan, max(1, len(world.records))
    peers = plan.peers + len(plan.strangers) + len(plan.leaves) + sum(not cut.journal for cut in plan.crashes.values())
    attempts = sum(outcome.attempts for outcome in world.witness) or 1
    broken = []
    # Five announcements and a vote in an attempt; each sends values, views, certificates and chains of up to two values
    # of every peer to every peer.
    most = (6 * attempts + 6 * steps) * peers * peers * (6 + 2 * peers)
    if world.plan.blackout:  # a peer in no step says so twice in a second, is answered, and asks: as long as it lasts
        most += int(_WAITING * world.time.now) * peers * peers
    if world.time.packets > most:
        broken.append(f"{world.time.packets} packets in {steps} steps with {attempts} attempts: at most {most}")
    return broken


def memory(world: World) -> list[str]:
    """At any time a peer holds no more from each member than there is room for, whatever liars send.

    Measured amid steps on what a channel holds, and not by its own account of it.
    """
    most = world.plan.peers * (BOUNDS.memory + _WORK)
    if world.most_held > most:
        return [f"a peer held {world.most_held:,} bytes of others, at most {most:,}"]
    return []
