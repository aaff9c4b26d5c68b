"""What surrounds a recording can be seen without a GPU; recordings themselves are in `test_cuda.py`."""

import gc

import pytest
import torch
from torch import Tensor

from troth.training import gradient_calls
from troth.training.task import Batch


@pytest.mark.long
def test_nothing_is_collected_while_a_recording_is_made() -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            with gradient_calls._nothing_collected():
                assert not gc.isenabled()
            assert gc.isenabled() is enabled
        finally:
            gc.enable()


def test_a_recording_that_was_spoilt_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread of the process, for instance: chance must not decide how a gradient is computed, and so its bits."""
    made: list[int] = []

    class Spoilt:
        streams = ()

        def __init__(self, *_: object) -> None:
            made.append(1)
            if len(made) == 1:
                raise RuntimeError("operation not permitted when stream is capturing\nmore")

    def compute(flat_D: Tensor, _: Batch) -> tuple[Tensor, Tensor]:
        return flat_D.sum(), flat_D

    monkeypatch.setattr(gradient_calls, "GradientGraph", Spoilt)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    assert isinstance(gradient_calls.record(compute, torch.ones(2), [{}]), Spoilt)
    assert len(made) == 2
    made.clear()
    monkeypatch.setattr(gradient_calls, "_TRIES", 1)
    assert gradient_calls.record(compute, torch.ones(2), [{}]) == "operation not permitted when stream is capturing"
