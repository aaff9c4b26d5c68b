"""Chunks of one piece of work on the cores given to this peer: one pool for the process, and results in the order of chunks."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


def spread(work: Callable[[int], T], count: int) -> list[T]:
    """`[work(0), …, work(count − 1)]`, computed by as many threads as PyTorch uses; the calling thread is one of them.

    Each takes the next chunk when it has time. Chunks are cut without regard to threads, so bits do not depend on them.
    """
    workers = min(torch.get_num_threads(), count)
    if workers <= 1:
        return [work(chunk) for chunk in range(count)]
    results: dict[int, T] = {}
    chunks = iter(range(count))

    def take_turns() -> None:
        for chunk in chunks:  # a step of this iterator is one operation of the interpreter: no chunk is taken twice
            results[chunk] = work(chunk)

    helpers = [_pool().submit(take_turns) for _ in range(workers - 1)]
    take_turns()
    for helper in helpers:
        helper.cancel()  # one that has not begun has nothing left to do
    for helper in helpers:
        if not helper.cancelled():
            helper.result()
    return [results[chunk] for chunk in range(count)]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="troth-kernels")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads stay behind in the parent
