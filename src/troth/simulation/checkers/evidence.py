"""Every ban's evidence verifies offline, from its bytes alone, and names the one who was banned."""

from troth.evidence.bans import History, ban_evidence
from troth.evidence.verify import UnprovedError, verify_ban
from troth.simulation.world import World


def evidence(world: World) -> list[str]:
    broken, history = [], History(world.run)
    for outcome in world.witness:
        proved: set[bytes] = set()
        for judgement in outcome.record.judgements:
            if judgement.banned is None or judgement.banned in proved:
                continue  # one judgement is enough to be banned, and to prove it
            proved.add(judgement.banned)
            try:
                proof = verify_ban(ban_evidence(world.run, history, outcome, judgement).text, world.run.id)
            except UnprovedError as error:
                broken.append(f"step {outcome.record.step}: the ban of {world.numbers[judgement.banned]}: {error}")
                continue
            if proof.banned not in outcome.record.banned:
                broken.append(f"step {outcome.record.step}: the evidence is about somebody else")
        history.add(outcome)
    return broken
