"""What any member can work out from public state: who owns which part, and whom the next step will audit."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from troth.attacks.colluder import Collusion
from troth.crypto import PeerId, Slot
from troth.protocol.core.coins import combine
from troth.protocol.core.rejoin import returning
from troth.protocol.core.roles import PendingAudits, draw_roles
from troth.protocol.wire.messages import Announced, Commit


def owners_now(collusion: Collusion, members: Collection[PeerId]) -> tuple[PeerId, ...]:
    """By part, in an attempt with these members."""
    assert collusion.state is not None
    state = collusion.state()
    roles = draw_roles(collusion.run, state.roster, state.randomness, state.pending_audits)
    out = frozenset(state.roster.members) - frozenset(members)
    return tuple(roles.owner_of(part, out) for part in range(len(roles.owners)))


def contributors_of(commits: Mapping[PeerId, Announced], members: Collection[PeerId]) -> tuple[PeerId, ...]:
    """Whoever committed to a gradient and is still there."""
    rooted = {peer for peer, said in commits.items() if isinstance(said.message, Commit) and said.message.root}
    return tuple(sorted(rooted & set(members)))


def audits_to_come(
    collusion: Collusion,
    slot: Slot,
    commits: Mapping[PeerId, Announced],
    members: Collection[PeerId],
    coins: Mapping[PeerId, bytes],
) -> set[tuple[PeerId, PeerId]]:
    """Who audits whom in the next step, if these coins B are opened: drawn as everyone will."""
    assert collusion.state is not None
    roster, step = collusion.state().roster, slot.step
    back = [PeerId(request.key) for request in returning(commits, roster, step)]
    after = replace(
        roster,
        members=tuple(sorted({*members, *back})),
        returns=(*roster.returns, *((step, key) for key in back)),
    )
    due = PendingAudits(step, contributors_of(commits, members), everyone=bool(set(members) - coins.keys()))
    roles = draw_roles(collusion.run, after, combine("roles", step, slot.attempt, coins), due)
    return {(auditor, audit.target) for auditor, audits in roles.audits.items() for audit in audits}
