"""Peers that vanish at random moments: `make drop-outs` runs a thousand runs and writes docs/drop-outs.md.

Every seed draws a number of peers, how many of them stop when, and in half of the runs liars with an attack. Each run is
checked against the design by rules that know nothing of how the protocol decides.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.progress import track

from benchmarks.marked import fill, table
from troth.crypto import PeerId, stream
from troth.evidence.verify import verify_ban
from troth.protocol.core.records import StepRecord, decode_record
from troth.protocol.core.run import most_byzantine
from troth.protocol.wire.messages import ChargeKind
from troth.workshop.simulation import ProtocolSimulation, Scenario
from troth.workshop.simulation.exchange import DropOut, DroppingChannel

RUNS, STEPS = 1000, 30
ATTACKS = ("sign-flip", "wrong-aggregate", "wrong-report", "false-accusation", "grind", "vanish:after=reveal", "alie")
PAGE = Path(__file__).parent.parent / "docs" / "drop-outs.md"


@dataclass
class Tally:
    """What happened in one run, or in many."""

    runs: int = 0
    steps: int = 0
    extra_attempts: int = 0
    bans: int = 0
    stopped: int = 0  # runs in which more than half of the members vanished within one step
    paused: int = 0  # steps that did not change the model, as too few contributed or could be spared to validate
    dropped: int = 0  # peers that stopped

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.runs + other.runs,
            self.steps + other.steps,
            self.extra_attempts + other.extra_attempts,
            self.bans + other.bans,
            self.stopped + other.stopped,
            self.paused + other.paused,
            self.dropped + other.dropped,
        )


def drawn(seed: int) -> Scenario:
    draw = stream(seed, "drop-outs")
    peers = 4 + int(draw.integers(13, 1)[0])
    most = most_byzantine(peers, 1)
    byzantine = int(draw.integers(most + 1, 1)[0]) if seed % 2 else 0
    return Scenario(
        task="quadratic:dimension=24",
        peers=peers,
        byzantine=byzantine,
        attack=ATTACKS[int(draw.integers(len(ATTACKS), 1)[0])],
        attack_start=int(draw.integers(10, 1)[0]),
        # With liars, no more than leave the honest in the majority of contributors: beyond that nothing is promised.
        drop_outs=int(draw.integers(max(1, peers - 2 * byzantine - 1 if byzantine else peers), 1)[0]),
        steps=STEPS,
        evaluate_every=STEPS,
        seed=seed,
    )


def checked_run(seed: int) -> Tally:
    """Run one seed and hold it against the design; an AssertionError says what does not fit."""
    torch.set_num_threads(1)
    simulation = ProtocolSimulation(drawn(seed))
    for _ in simulation.steps():
        pass
    records = [record for record in map(decode_record, simulation.trace) if not record.closing]
    assert simulation.agreement, "honest peers disagree"
    assert {ban.peer for ban in simulation.bans} <= set(simulation.byzantine), "an honest peer was banned"
    for evidence in simulation.evidence:
        verify_ban(evidence.text)
    for record in records:
        assert record.updated == _must_update(simulation, record, records), f"step {record.step}: {record.updated=}"
    _check_progress(simulation, records)
    return Tally(
        runs=1,
        steps=len(records),
        extra_attempts=simulation.attempts - len(simulation.trace),
        bans=len(simulation.bans),
        stopped=simulation.stalled is not None,
        paused=sum(not record.updated for record in records),
        dropped=len(_drop_outs(simulation)),
    )


def _must_update(simulation: ProtocolSimulation, record: StepRecord, records: list[StepRecord]) -> bool:
    """SPEC G2: no more than `b` are gone, for whatever reason, or liars cannot be half of the contributors."""
    b = simulation.run.parameters.byzantine
    cheated = {j.banned for j in record.judgements if j.kind == ChargeKind.AGGREGATE} - {None}
    there = len(set(record.members) - cheated - set(record.absent) - (set(record.expelled) - set(record.contributors)))
    liars = b - _sure_bans_before(record.step, records)
    return len(simulation.run.founders) - there <= b or 2 * liars < len(record.contributors)


def _sure_bans_before(step: int, records: list[StepRecord]) -> int:
    """Bans that nobody can refute: only these make fewer liars (SPEC G1)."""
    return len({peer for old in records if old.step < step for peer in {*old.banned} - old.disputable})


def _quorum(simulation: ProtocolSimulation, members: int, step: int, records: list[StepRecord]) -> int:
    """SPEC G1: more than half, and more than the liars that may be left."""
    liars = max(0, simulation.run.parameters.byzantine - _sure_bans_before(step, records))
    return max(members // 2 + 1, liars + 1)


def _check_progress(simulation: ProtocolSimulation, records: list[StepRecord]) -> None:
    """A step ends if a quorum of its members, which is one of those before it too, is honest and stays until its end; else
    nobody may go on alone."""
    drop_outs, before = _drop_outs(simulation), 0
    for step, members in enumerate(_rosters(simulation, records)):
        staying = [p for p in members if p in simulation.honest and drop_outs.get(p, DropOut(STEPS, 0)).step > step]
        quorum = _quorum(simulation, len(members), step, records)
        if len(staying) >= max(quorum, before):
            assert step < len(records), f"step {step} could have ended: {simulation.stalled}"
        before = quorum
    for record in records:
        alive = [p for p in record.members if drop_outs.get(PeerId(p), DropOut(STEPS, 0)).step >= record.step]
        quorum = _quorum(simulation, len(record.members), record.step, records)
        assert len(alive) >= quorum, f"step {record.step} ended without a quorum"


def _rosters(simulation: ProtocolSimulation, records: list[StepRecord]) -> Iterator[tuple[PeerId, ...]]:
    members = simulation.run.founders
    for record in records:
        assert record.members == members, f"step {record.step} has another roster"
        yield members
        members = tuple(peer for peer in members if peer not in record.leaving)
    if len(records) < STEPS:
        yield members


def _drop_outs(simulation: ProtocolSimulation) -> dict[PeerId, DropOut]:
    channels = {peer: member.channel for peer, member in simulation.peers.items()}
    return {peer: channel.drop_out for peer, channel in channels.items() if isinstance(channel, DroppingChannel)}


def main() -> None:
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        runs = pool.map(checked_run, range(first, first + RUNS), chunksize=4)
        total = sum(track(runs, total=RUNS, description="runs"), Tally())
    counts = [
        ("steps", total.steps),
        ("attempts beyond the first", total.extra_attempts),
        ("liars banned", total.bans),
        ("steps without an update (too few contributors, or nobody to spare for validating)", total.paused),
        ("runs that stopped, since half of the members or more vanished within one step", total.stopped),
    ]
    fill(
        PAGE,
        {
            "runs": f"""Written by `make drop-outs`: {total.runs:,} runs of up to {STEPS} steps with 4 to 16 peers, \
{total.dropped:,} of
whom stop for good at a random moment; in half of the runs there are liars too, with one of {len(ATTACKS)} attacks.""",
            "counts": table(("what", "how often"), [(what, f"{count:,}") for what, count in counts]),
        },
    )


if __name__ == "__main__":
    main()
