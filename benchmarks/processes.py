"""Processes of a benchmark: started together, and none left behind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

Start = Callable[..., Connection]


@contextmanager
def started(preload: str) -> Iterator[Start]:
    """Starts processes whose functions are in this module; each gets its end of a pipe as the last argument."""
    context, processes = get_context("forkserver"), list[BaseProcess]()
    context.set_forkserver_preload([preload])

    def start(target: Callable[..., None], *arguments: Any) -> Connection:
        mine, theirs = context.Pipe()
        process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        return mine

    try:
        yield start
        for process in processes:
            process.join(30)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
