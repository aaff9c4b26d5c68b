"""Bans: never of the honest, always for good, and each with evidence that verifies offline."""

from troth.evidence.bans import History
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.wire.messages import Kind
from troth.simulation.chaos.world import World


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
            if proof.exhibit is not None and proof.judgement.kind in (Kind.REPORT, Kind.AGGREGATE):
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
