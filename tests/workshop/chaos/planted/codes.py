"""Bugs in codes and in how they are judged (SPEC C4, V4, T6)."""

from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tests.workshop.chaos.planted.replace import instead_of
from troth.clip.blocks import BIAS, BLOCK, INT16, Blocks, Code
from troth.clip.centered_clip import judge_center
from troth.clip.rounded_center import CONVICT_ROUNDING, acquits
from troth.crypto import Seed, derive
from troth.protocol.core.parts import Bounds, CommittedParts, commit_parts
from troth.protocol.step import leaves as leaves_module
from troth.protocol.step import step as step_module
from troth.protocol.wire.primitives import Primitives


def rounded_privately() -> Any:
    """A contributor rounds its gradient by numbers that nobody else draws."""

    def private(gradient_D: Tensor, bounds: Bounds, tools: Primitives, code: Code, seed: Seed) -> CommittedParts:
        return commit_parts(gradient_D, bounds, tools, code, derive(seed, "private"))

    return patch.object(step_module, "commit_parts", private)


def any_exponents() -> Any:
    """Aggregates are read whatever exponents they are written with."""
    strict = Blocks.unpack

    def lenient(
        self: Blocks, view: memoryview, into_D: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32] | None:
        found_D = strict(self, view, into_D)
        if found_D is not None or self != INT16 or self.length(self.count(len(view))) != len(view):
            return found_D
        width, raw = 1 + 2 * BLOCK, bytes(view)
        blocks = [raw[start : start + width] for start in range(0, len(raw), width)]
        numbers = [np.frombuffer(block[1:], "<i2") * 2.0 ** (block[0] - BIAS) for block in blocks]
        return np.concatenate(numbers).astype(np.float32)

    return patch.object(Blocks, "unpack", lenient)


def leaves_unjudged() -> Any:
    return patch.object(leaves_module, "_is_wrong", lambda *_: False)


def judged_as_a_whole() -> Any:
    """Jurors let single numbers be anywhere within a whole aggregate's rounding."""

    def whole(rows_PD: Tensor, center_D: Tensor, *, tau: float, code: Code) -> bool:
        rounding = CONVICT_ROUNDING * code.rounding(center_D)
        residual, tolerance = judge_center(rows_PD, center_D, tau=tau, rounding=rounding)
        return residual <= tolerance

    return instead_of(acquits, whole)
