"""How fast vectors become blocks of codes, and numbers again, against a copy, the definition, and the hashing that codes save.
`make bench-codes`."""

import hashlib
import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from benchmarks.marked import table
from benchmarks.timing import best_of
from troth.clip import kernels
from troth.clip.blocks import INT8, INT16, Blocks, Code

SIZE, ROUNDS = 10_000_000, 15
KEY = bytes(range(8))
PAGE = Path(__file__).parent / "results-codes.md"
TITLES = ["what", "threads:", "ms:", "GB/s:", "copies:", "definition:", "hashing saved:"]


def works() -> dict[str, tuple[Blocks, Callable[[], object]]]:
    """Each by its name, with the form that it reads or writes."""
    code, numbers_D = Code.known["int8"], torch.from_numpy(np.random.default_rng(0).standard_normal(SIZE, np.float32))
    row_D, row = INT8.round_and_pack(numbers_D, KEY)
    center_D, center = INT16.round_and_pack(numbers_D)
    return {
        "int8: round a row": (INT8, lambda: code.round_row(numbers_D, KEY)),
        "int8: pack": (INT8, lambda: INT8.pack(row_D)),
        "int8: both at once": (INT8, lambda: INT8.round_and_pack(numbers_D, KEY)),
        "int8: check and unpack": (INT8, lambda: INT8.unpack(row)),
        "int16: round an aggregate": (INT16, lambda: code.round_center(numbers_D)),
        "int16: pack": (INT16, lambda: INT16.pack(center_D)),
        "int16: both at once": (INT16, lambda: INT16.round_and_pack(numbers_D)),
        "int16: check and unpack": (INT16, lambda: INT16.unpack(center)),
        "int16: what rounding moves": (INT16, lambda: code.rounding(center_D)),
    }


def rows() -> list[list[object]]:
    Code.known["int8"].prepare(SIZE)
    from_D, before = np.ones(SIZE, np.float32), torch.get_num_threads()
    found: list[list[object]] = []
    for name, (form, work) in works().items():
        saved = from_D.view(np.uint8)[form.length(SIZE) :].data
        with mock.patch.object(kernels, "compiled", return_value=False):
            plain = best_of({"definition": work}, 3)["definition"]
        for threads in (1, 2):
            torch.set_num_threads(threads)
            contenders: dict[str, Callable[[], object]] = {
                "loop": work,
                "copy": from_D.copy,
                "hash": partial(hashlib.sha256, saved),
            }
            times = best_of(contenders, ROUNDS)
            loop = times["loop"]
            found.append(
                [
                    name,
                    threads,
                    f"{1e3 * loop:.1f}",
                    f"{4e-9 * SIZE / loop:.1f}",
                    f"{loop / times['copy']:.1f}",
                    f"{plain / loop:.0f} ×",
                    f"{times['hash'] / loop:.1f} ×",
                ]
            )
    torch.set_num_threads(before)
    return found


def main() -> None:
    machine = f"{platform.machine()}, {os.cpu_count()} cores with a load of {os.getloadavg()[0]:.0f} before, PyTorch {torch.__version__}"
    text = f"""# Blocks of codes

Written by `make bench-codes` on {machine}. D={SIZE:,}; best of {ROUNDS}. GB/s are of float32; a copy is of as many. Definition: how much longer NumPy takes by it, with one thread. Hashing saved: how much longer SHA-256 takes, on one core, for the bytes that these codes are fewer.

{table(TITLES, rows())}"""
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
