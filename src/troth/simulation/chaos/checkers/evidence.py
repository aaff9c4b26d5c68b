"""Every ban's evidence verifies offline, from its bytes alone, and names the one who was banned; where it shows what the ban
follows from, computing it gives the same verdict."""

from troth.evidence.bans import History
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.wire.messages import Kind
from troth.simulation.chaos.world import World


def evidence(world: World) -> list[str]:
    broken, history, banned = [], History(world.run), set[bytes]()
    for outcome in world.witness:
        for made in history.add(outcome):
            try:
                proof = verify_ban(made.text, world.run.id)
            except UnprovedError as error:
                broken.append(f"step {made.step}: the ban of {world.name(bytes.fromhex(made.file.banned))}: {error}")
                continue
            if proof.testimony is not None and proof.judgement.kind in (Kind.REPORT, Kind.AGGREGATE):
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
