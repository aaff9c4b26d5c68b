"""hivemind's own averager on the same vector, in a virtual environment of its own: run by `benchmarks.network`, imports nothing of Troth.

Prints one line of JSON: for every round the seconds of matchmaking and of the all-reduce after it, of the slowest peer.
"""

import json
import multiprocessing
import sys
import time
from typing import Any


def peer(rank: int, peers: int, size: int, rounds: int, pipe: Any, barrier: Any) -> None:
    import hivemind  # type: ignore[import-not-found]
    import torch
    from hivemind.averaging.control import AveragingStage  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    initial = pipe.recv() if rank else []
    dht = hivemind.DHT(initial_peers=initial, host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
    if rank == 0:
        pipe.send([str(address) for address in dht.get_visible_maddrs()])
    averager = hivemind.DecentralizedAverager(
        [torch.ones(size)],
        dht,
        prefix="benchmark",
        target_group_size=peers,
        min_group_size=peers,
        start=True,
    )
    times = []
    for _ in range(rounds):
        barrier.wait()
        began = time.monotonic()
        control = averager.step(wait=False, require_trigger=True, timeout=120)
        while control.stage not in (AveragingStage.AWAITING_TRIGGER, AveragingStage.FINISHED):
            time.sleep(0.002)
        matched = time.monotonic()
        barrier.wait()
        averaging = time.monotonic()
        control.allow_allreduce()
        found = control.result(timeout=120)
        times.append((matched - began, time.monotonic() - averaging, len(found) if found else 0))
    pipe.send(times)
    barrier.wait()
    averager.shutdown()
    dht.shutdown()


def main(peers: int, size: int, rounds: int) -> None:
    context = multiprocessing.get_context("fork")  # hivemind forks, and so must its parents
    barrier = context.Barrier(peers)
    pipes, processes = [], []
    for rank in range(peers):
        mine, theirs = context.Pipe()
        process = context.Process(target=peer, args=(rank, peers, size, rounds, theirs, barrier))
        process.start()
        pipes.append(mine)
        processes.append(process)
    addresses = pipes[0].recv()
    for pipe in pipes[1:]:
        pipe.send(addresses)
    told = [pipe.recv() for pipe in pipes]
    slowest = [
        (max(one[0] for one in each), max(one[1] for one in each), min(one[2] for one in each))
        for each in zip(*told, strict=True)
    ]
    print(json.dumps(slowest), flush=True)
    for process in processes:
        process.join(20)
        if process.is_alive():
            process.kill()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
