"""When loops are compiled, by how many threads they run, and what happens without numba."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.clip.nasty import moderate
from troth.clip import kernels
from troth.clip.kernels import spread
from troth.crypto import sign_bytes, tagged_hash


def in_a_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    return done.stdout.strip()


@pytest.mark.long
def test_small_vectors_do_not_import_numba() -> None:
    code = """
import sys, torch, troth
from troth.clip.fast import centered_clip; from troth.clip.exact import exact_norm
from troth.training.optimizers import SGD
x = torch.ones(1000)
exact_norm(x), centered_clip(torch.ones(16, 1000), tau=1.0), SGD().update(x, x, SGD().start(x), 0.1)
print("numba" in sys.modules)
exact_norm(torch.ones(1 << 18))
print("numba" in sys.modules)
"""
    assert in_a_process(code).split() == ["False", "True"]


@pytest.mark.long
def test_without_numba_the_reference_answers() -> None:
    code = """
import sys
sys.modules["numba"] = None
import torch
from troth.clip import kernels
from troth.clip.exact import exact_norm; from troth.clip.centered_clip import judge_center
from troth.clip.fast import solve_centered_clip
from troth.training.optimizers import SGD, AdamW
x = torch.linspace(-1, 1, 1 << 18)
print(kernels.compiled(1 << 20), exact_norm(x).hex())
rows = torch.stack([x, x * 2, x * 3])
print(solve_centered_clip(rows, tau=1.0).reads, judge_center(rows, x, tau=1.0))
print(float(SGD().update(x, x, SGD().start(x), 0.1)[0].sum()), float(AdamW().update(x, x, AdamW().start(x), 0.1)[0].sum()))
"""
    without = in_a_process(code)
    assert without.startswith("False")
    assert in_a_process(code.replace('sys.modules["numba"] = None', "")) == without.replace("False", "True")


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    rows_PD, center_D = np.stack([moderate(300_001, seed) for seed in range(5)]), moderate(300_001, 7)
    key, found = tagged_hash("key"), []
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        some = kernels.differences(rows_PD, center_D, (0, 1000, 300_001), lambda a, b: sign_bytes(key, 16, a, b))
        value_D, *squares = kernels.combine(rows_PD, np.linspace(0, 1, 5), center_D, 0.5)
        numbers: list[NDArray[Any]] = [
            *some,
            kernels.squared_lengths(rows_PD, (0, 300_001)),
            kernels.gram(rows_PD, center_D),
            value_D,
        ]
        judged = kernels.pulls(rows_PD, center_D, 1.0), kernels.exact_norm(center_D, 1 << 14, 16), squares
        found.append(([one.tobytes() for one in numbers], judged))
    assert all(one == found[0] for one in found)


@pytest.mark.usefixtures("threads")
def test_results_come_in_the_order_of_chunks_and_errors_come_through() -> None:
    for count in (1, 4):
        torch.set_num_threads(count)
        assert spread(lambda chunk: chunk * chunk, 1000) == [chunk * chunk for chunk in range(1000)]
        assert spread(lambda chunk: chunk, 0) == []
        with pytest.raises(ZeroDivisionError):
            spread(lambda chunk: 1 // (chunk - 7), 20)


def test_rows_of_other_formats_and_lengths_are_refused() -> None:
    """Loops read by address: a shorter row would have them read somebody else's memory."""
    row_D = np.ones(100, np.float32)
    with pytest.raises(AssertionError, match="from every row"):
        kernels.gram([row_D, row_D[:99]], row_D)
    with pytest.raises(AssertionError, match="from the centre"):
        kernels.gram([row_D], row_D[:50])
    with pytest.raises(AssertionError, match="as long as the centre"):
        kernels.differences([row_D], row_D[:50], (0, 100), lambda a, b: np.zeros((b - a, 2), np.uint8))
    with pytest.raises(AssertionError, match="float32"):
        kernels.squared_lengths([row_D.astype(np.float64)], (0, 100))
    with pytest.raises(AssertionError, match="within the rows"):
        kernels.squared_lengths([row_D], (0, 101))
    with pytest.raises(AssertionError, match="from the centre"):
        kernels.pulls([row_D], row_D[:99], 1.0)


def test_preparing_compiles_without_a_large_vector() -> None:
    kernels.prepare(10)
    kernels.prepare(kernels.LARGE)


@pytest.mark.long
def test_peers_that_start_together_all_get_their_loops() -> None:
    code = "from troth.clip import kernels; kernels.prepare(1 << 20); print('ready')"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [peer.communicate(timeout=300)[0].strip() for peer in started] == ["ready"] * 3
