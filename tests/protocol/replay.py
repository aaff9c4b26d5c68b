"""Replay of a run by a trusted server, from its records: same contributors, seeds and part bounds.

Without attackers it must end with the same bits, since the protocol adds checks to training and changes nothing in it.
"""

from collections.abc import Iterable
from itertools import pairwise

import torch

from troth.clip.fast import centered_clip
from troth.crypto import Digest, PeerId
from troth.protocol.core.parts import part_bounds
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import gradient_seed
from troth.protocol.core.roster import part_taus
from troth.protocol.core.run import Run
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training, TrainingWork, finite_or_zero

# P peers, D coordinates


def replay(run: Run, work: TrainingWork, training: Training, records: Iterable[StepRecord]) -> Training:
    """Training state that honest contributors and an honest server would have reached; updates are clipped as recorded."""
    before = training
    for record in records:
        if record.closing:  # it may have taken the last step back (SPEC U4)
            return before if record.undone else training
        before = training
        seeds = [gradient_seed(Digest(record.seed_randomness), PeerId(peer)) for peer in record.contributors]
        batches = [work.problem.batch(seed) for seed in seeds]
        _, rows_PD = work.problem.gradients(training.parameters_D, batches)
        rows_PD = torch.stack([finite_or_zero(row_D) for row_D in rows_PD])
        bounds = part_bounds(run.parameters.size, record.parts)
        parts = [
            centered_clip(rows_PD[:, start:stop].contiguous(), tau=tau)
            for (start, stop), tau in zip(pairwise(bounds), part_taus(record.tau, bounds), strict=True)
        ]
        if record.updated:
            training = work.update(training, Primitives().scaled(torch.cat(parts), record.factor), record.updates - 1)
    return training
