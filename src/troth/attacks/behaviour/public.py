"""Public state, worked out as any member can: owners of parts, and the audits of the next step."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from troth.attacks.colluder import Collusion
from troth.crypto import PeerId, Slot
from troth.protocol.core.coins import combine
from troth.protocol.core.rejoin import returning
from troth.protocol.core.roles import PendingAudits, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.protocol.wire.messages import Announced, Commit


def owners_now(collusion: Collusion, members: Collection[PeerId]) -> tuple[PeerId, ...]:
    """Owner of each part, in an attempt with these members."""
    assert collusion.state is not None
    state = collusion.state()
    roles = draw_roles(collusion.run, state.roster, state.randomness, state.pending_audits)
    out = frozenset(state.roster.members) - frozenset(members)
    return tuple(roles.owner_of(part, out) for part in range(len(roles.owners)))


def contributors_of(
    commits: Mapping[PeerId, Announced], members: Collection[PeerId] | None = None
) -> tuple[PeerId, ...]:
    """Peers that committed to a gradient, and are still members."""
    rooted = {peer for peer, said in commits.items() if isinstance(said.message, Commit) and said.message.root}
    return tuple(sorted(rooted if members is None else rooted & set(members)))


def audits_to_come(
    collusion: Collusion,
    slot: Slot,
    commits: Mapping[PeerId, Announced],
    members: Collection[PeerId],
    coins: Mapping[PeerId, bytes],
) -> set[tuple[PeerId, PeerId]]:
    """Pairs of auditor and target in the next step, if these coins B are opened: drawn as everyone will."""
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


def audits_among_committed(
    run: Run,
    slot: Slot,
    commits: Mapping[PeerId, Announced],
    coins: Mapping[PeerId, bytes],
    *,
    everyone: bool = False,
) -> set[tuple[PeerId, PeerId]]:
    """Pairs of auditor and target in the next step, guessed from Commits and coins alone: as if nobody left or came back."""
    pending = PendingAudits(slot.step, contributors_of(commits), everyone=everyone)
    drawn = combine("roles", slot.step, slot.attempt, coins)
    roles = draw_roles(run, Roster(tuple(sorted(commits))), drawn, pending)
    return {(auditor, audit.target) for auditor, audits in roles.audits.items() for audit in audits}
