"""Widths of calls for gradients: those in which a batch has the same bits, alone or among others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from troth.training.task import Batch

# P peers, D coordinates

_FEW_LANES = 4  # an audit may cost as much as a fourth of all peers' gradients


@dataclass(frozen=True)
class Lanes:
    """Widths of calls that give a batch the same gradient, bit for bit."""

    alone: int = 1  # of a call for one batch
    together: tuple[int, ...] = ()  # of calls for several, ascending; none: any width will do

    def width(self, count: int) -> int:
        """Width of the call for so many batches; the rest is padding."""
        return self.alone if count == 1 else next((width for width in self.together if width >= count), count)


def padded(batches: Sequence[Batch], width: int) -> list[Batch]:
    """The batches, the last of them repeated up to a width."""
    return [*batches, *[batches[-1]] * (width - len(batches))]


def settle(gradients: Callable[[Sequence[Batch]], Tensor], batches: Sequence[Batch], *, pad: bool) -> Lanes | None:
    """Find widths of calls in which a batch has the same gradient, bit for bit; None: compute one by one.

    An auditor recomputes one gradient, the pool computes many in one call, and both must give the same bits, or an honest peer
    is banned. Kernels are chosen by shape, so the only widths that are ever used are those that are probed here, and calls for
    fewer are padded: all peers', half of them (liars are fewer, so more than half stay), and one for an auditor. That takes
    nine calls at most, however many peers there are. Where a call for one has other bits than a row of a wide one, a few
    lanes may do. On an accelerator, which calls one by one would leave idle, none may: with `pad`, an audit then takes a call
    as wide as the pool's, whose rows the probe has found to be the same wherever a batch stands.
    """
    peers, first, last = len(batches), batches[0], batches[-1]
    widest_PD = gradients(batches)
    if not torch.equal(gradients([first] * peers), widest_PD[:1].expand_as(widest_PD)):
        return None  # the place in the call matters
    half = -(-peers // 2)
    halves = (half,) if 1 < half < peers and torch.equal(gradients(batches[-half:]), widest_PD[-half:]) else ()
    for width in sorted({1, 2, max(2, peers // _FEW_LANES)}):
        if width <= peers and all(
            torch.equal(gradients([batch] * width)[0], row_D)
            for batch, row_D in ((first, widest_PD[0]), (last, widest_PD[-1]))
        ):
            return Lanes(width, (*halves, peers))
    return Lanes(peers, (*halves, peers)) if pad else None
