"""Checks for people who write a task, a rule or an attack, and a whole run in one process to try them in.

Each check raises an `AssertionError` (a task's: a `TaskError`) that says what to change, and returns nothing otherwise:
call it from a test.

>>> troth.testing.check_task("quadratic")
>>> troth.testing.check_rule(troth.rules.median, byzantine=2)
>>> troth.testing.check_attack("sign-flip")
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from troth.api.member import MemberRun, join
from troth.api.simulate import simulate
from troth.crypto import derive, stream
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.options import ManifestOptions
from troth.plugins import in_its_folder
from troth.training import Problem, Task, check_pure, make_task
from troth.training.task import TaskError
from troth.workshop.attacks import GradientAttack, make_attack
from troth.workshop.attacks.base import asks_for_layout, forging
from troth.workshop.attacks.informed_lies import mean_of_rows
from troth.workshop.swarm_peers import SwarmPlan, founders_of

# P peers, B colluders, H honest peers, D coordinates

__all__ = ["check_attack", "check_rule", "check_task", "local_run"]

_D = 64
_FAR = (1e2, 1e4, 1e6)  # lengths of lies, in units of honest vectors


def check_task(task: str | Task) -> None:
    """Check that a task is a pure function of its seed, and that its model gives its weights back.

    `TaskError` says what to change: a task that is not pure would have honest peers accuse each other.
    """
    made = make_task(task) if isinstance(task, str) else task
    if not isinstance(made, Task):
        raise TaskError(f"`task` is a name or a Task, got {made!r}: troth.task(model=…, data=…, loss=…) makes one")
    problem = Problem(made)
    check_pure(made, problem)
    made.model().load_state_dict(problem.state_dict(problem.initial(0)), strict=True)


def check_rule(rule: Callable[[Tensor], Tensor], *, peers: int = 8, byzantine: int = 0) -> None:
    """Check that a rule maps P vectors to one, gives the same bits again, leaves its input alone and plays no favourites.

    With `byzantine`, also that so many liars, however far away and whatever their direction, move the result by no more
    than ten times the distance of the farthest honest vector from the honest mean.
    """
    vectors_PD = _vectors(peers)
    before_PD = vectors_PD.clone()
    result_D = rule(vectors_PD)
    assert isinstance(result_D, Tensor), f"the rule returns {type(result_D).__name__}: return a tensor"
    assert result_D.shape == (_D,), f"the rule turns {peers}×{_D} into {tuple(result_D.shape)}: return {_D} numbers"
    assert result_D.dtype == vectors_PD.dtype, f"the rule turns {vectors_PD.dtype} into {result_D.dtype}"
    assert bool(result_D.isfinite().all()), "the rule turns finite vectors into something that is not"
    assert torch.equal(vectors_PD, before_PD), "the rule changes its input in place: work on a copy"
    assert torch.equal(result_D, rule(vectors_PD)), "the rule gives other bits for the same vectors: leave chance out"
    order = torch.from_numpy(stream(0, "order").permutation(peers))
    same = torch.allclose(rule(vectors_PD[order]), result_D, rtol=1e-4, atol=1e-5)
    assert same, "the rule depends on the order of the vectors: liars would choose theirs"
    alike_PD = vectors_PD[:1].expand(peers, _D).clone()
    assert torch.allclose(rule(alike_PD), alike_PD[0], rtol=1e-4, atol=1e-5), "equal vectors do not give that vector"
    _check_robust(rule, vectors_PD, byzantine)


def _check_robust(rule: Callable[[Tensor], Tensor], vectors_PD: Tensor, byzantine: int) -> None:
    honest_HD = vectors_PD[byzantine:]
    center_D = honest_HD.mean(dim=0)
    most = 10 * float(torch.linalg.vector_norm(honest_HD - center_D, dim=1).max())
    for far in _FAR if byzantine else ():
        for sign in (1.0, -1.0):
            lies_BD = (sign * far * center_D).expand(byzantine, _D)
            moved = float(torch.linalg.vector_norm(rule(torch.cat([lies_BD, honest_HD])) - center_D))
            assert moved <= most, (
                f"{byzantine} liars at {sign * far:g} times the honest mean move the result by {moved:.3g}, "
                f"more than ten times the honest vectors' own distance ({most:.3g})"
            )


def check_attack(
    attack: str | GradientAttack, *, task: str | Task = "digits", honest: int = 5, colluders: int = 2
) -> None:
    """Check that an attack forges rows of the right shape, repeats itself with its seed, leaves its inputs alone, and runs.

    It runs in a small simulation of the protocol. Whether it does any harm there is not checked.
    """
    made = make_attack(attack) if isinstance(attack, str) else attack
    layout = Problem(make_task(task) if isinstance(task, str) else task).layout if asks_for_layout(made) else None
    vectors_PD = _vectors(honest + colluders, _D if layout is None else layout.size)
    own_BD, honest_HD = vectors_PD[:colluders], vectors_PD[colluders:]
    before_PD = vectors_PD.clone()
    with forging(layout):
        forges = [made.begin_against(derive(0, "squad"), mean_of_rows) for _ in range(2)]
        forged = [forge(range(colluders), own_BD, honest_HD) for forge in forges]
    for forged_BD in forged:
        assert forged_BD.shape == own_BD.shape, f"forge() turns {tuple(own_BD.shape)} into {tuple(forged_BD.shape)}"
        assert forged_BD.dtype == own_BD.dtype, f"forge() turns {own_BD.dtype} into {forged_BD.dtype}"
    assert torch.equal(*forged), "begin() gives other lies for the same seed: draw everything from it"
    assert torch.equal(vectors_PD, before_PD), "forge() changes its input in place: work on a copy"
    simulate(
        task, peers=honest + colluders, byzantine=colluders, attack=made, attack_start=1, steps=4, evaluate_every=4
    ).run()


def _vectors(peers: int, width: int = _D) -> Tensor:
    """Vectors like gradients of different batches: a common direction, and noise about as long."""
    draw = stream(0, "vectors")
    common_D, noise_PD = draw.normal(width), draw.normal(peers * width).reshape(peers, width)
    return torch.from_numpy(common_D + noise_PD).float()


@contextmanager
def local_run(
    task: str = "digits",
    *,
    peers: int = 4,
    steps: int = 10,
    folder: str | PathLike[str] | None = None,
    seed: int = 0,
    evaluate_every: int = 10,
) -> Iterator[Sequence[MemberRun]]:
    """A real run of several members in this process, over TCP on this machine, with throw-away keys.

    with troth.testing.local_run("my_task.py", peers=4, steps=10) as members:
        for member in members:
            member.wait()
        models = [member.model() for member in members]

    Their names are peer0, peer1, …; their folders lie in `folder`, which is temporary unless given. Everyone who knows the
    seed knows the keys: for tests only. `task` is a spec, since members agree on a file.
    """
    with ExitStack() as stack:
        place = Path(folder) if folder is not None else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plan = SwarmPlan(peers=peers, seed=seed)
        options = ManifestOptions(steps=steps, seed=seed, delta_s=1.0)
        founders = founders_of(plan)
        beside, spec = in_its_folder(task)
        manifest = build_manifest(spec, founders, options, beside).manifest
        members = [
            join(manifest, identity, folder=place / founder.name, listen=founder.address, evaluate_every=evaluate_every)
            for identity, founder in zip(plan.identities(), founders, strict=True)
        ]
        yield [stack.enter_context(member) for member in members]
