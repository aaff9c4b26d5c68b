"""Processes of a benchmark: started together, and none left behind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from troth.network.manifest.consent import agree_here, code_to_run
from troth.network.manifest.manifest import Manifest

Start = Callable[..., Connection]


def own_manifest(raw: bytes, folder: Path = Path()) -> Manifest:
    """The manifest of a benchmark's run; its task is the benchmark's own code, so this process may run it."""
    manifest = Manifest.from_bytes(raw, folder)
    if (code := code_to_run(manifest)) is not None:
        agree_here(code.digest)
    return manifest


@contextmanager
def started(preload: str, patience_s: float = 30.0) -> Iterator[Start]:
    """Starts processes whose functions are in this module; each gets its end of a pipe as the last argument. Those that have not
    ended so long after the block are killed."""
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
            process.join(patience_s)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
