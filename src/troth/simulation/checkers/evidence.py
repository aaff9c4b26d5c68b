"""Every ban's evidence verifies offline, from its bytes alone, and names the one who was banned."""

from troth.evidence.bans import History
from troth.evidence.verify import UnprovedError, verify_ban
from troth.simulation.world import World


def evidence(world: World) -> list[str]:
    broken, history, banned = [], History(world.run), set[bytes]()
    for outcome in world.witness:
        for made in history.add(outcome):
            try:
                proof = verify_ban(made.text, world.run.id)
            except UnprovedError as error:
                broken.append(f"step {made.step}: the ban of {world.name(bytes.fromhex(made.file.banned))}: {error}")
                continue
            if proof.banned not in banned:
                broken.append(f"step {made.step}: the evidence is about somebody else")
            banned.discard(proof.banned)
        broken += [
            f"step {outcome.record.step - 1}: no evidence of the ban of {world.name(peer)}" for peer in sorted(banned)
        ]
        banned = set(outcome.record.banned)
    return broken
