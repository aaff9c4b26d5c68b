"""Who does what in a step: a pure function of the agreed randomness."""

from collections.abc import Sequence
from dataclasses import dataclass

from troth.crypto import Digest, PeerId, Seed, derive, stream, tagged_hash
from troth.protocol.parts import Bounds, part_bounds
from troth.protocol.roster import Roster
from troth.protocol.run import Run, effective_validators


def first_randomness(run: Run) -> tuple[Digest, Digest]:
    """What stands for the draws of steps −1 and −2 (SPEC R2)."""
    return tagged_hash("troth/randomness/first/1", run.id), tagged_hash("troth/randomness/before/1", run.id)


@dataclass(frozen=True)
class Roles:
    """Validators with their targets; contributors in the order of the parts they own."""

    targets: dict[PeerId, PeerId]  # validator → whom it audits
    validators: tuple[PeerId, ...]
    owners: tuple[PeerId, ...]  # the contributors; owners[p] owns part p
    bounds: Bounds

    def owner_of(self, part: int, out: frozenset[PeerId] = frozenset()) -> PeerId:
        """The part's owner; if that one is out, the next contributor in the permutation that is not (SPEC N1)."""
        order = (*self.owners[part:], *self.owners[:part])
        return next(peer for peer in order if peer not in out)


def draw_roles(run: Run, roster: Roster, randomness: Digest, last_contributors: Sequence[PeerId]) -> Roles:
    """Validators, distinct targets among last step's contributors, and owners, all from `randomness` (SPEC R3–R5).

    In the first step nobody has contributed yet: all contribute, nobody audits. Who left since is still a target, who was
    banned is not: nothing more could come of it.
    """
    members = roster.members
    count = effective_validators(len(members), run.parameters.validators) if last_contributors else 0
    order = [members[k] for k in stream(randomness, "validators").permutation(len(members))]
    validators = tuple(order[:count])
    contributors = sorted(order[count:])
    owners = tuple(contributors[k] for k in stream(randomness, "owners").permutation(len(contributors)))
    return Roles(
        targets=_deal_targets(validators, sorted(set(last_contributors) - set(roster.banned)), randomness),
        validators=validators,
        owners=owners,
        bounds=part_bounds(run.parameters.size, len(owners)),
    )


def gradient_seed(randomness: Digest, peer: PeerId) -> Seed:
    """`ξ_i = H(r, key_i)` with the draw before the one that gave the roles (SPEC R2)."""
    return derive(randomness, "gradient", peer)


def _deal_targets(
    validators: Sequence[PeerId], candidates: Sequence[PeerId], randomness: Digest
) -> dict[PeerId, PeerId]:
    """Each validator the first candidate in a random order that is neither taken nor itself."""
    order = [candidates[k] for k in stream(randomness, "targets").permutation(len(candidates))]
    targets: dict[PeerId, PeerId] = {}
    for validator in validators:
        free = [peer for peer in order if peer != validator and peer not in targets.values()]
        if free:
            targets[validator] = free[0]
    return targets
