"""Bugs to plant in the protocol, each of which `troth chaos` must find: a checker that cannot fail checks nothing.

`python -m tests.simulation.chaos.planted [A..B] [--only WORD] [--worlds DRAW] [--processes N]` looks for the first seed that
finds each, and prints name, seed, steps and what was broken. `--table` prints that for docs/chaos.md, `--json` as the tests
need it:

    python -m tests.simulation.chaos.planted 0..300 --json > planted.json
    mv planted.json tests/simulation/chaos/planted_seeds.json

A bug that needs more than chance brings together has a world that was thought out: a plan in `plans/`, played in place of seeds.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

from troth.aggregation import residual_tolerance
from troth.crypto import PeerId, Slot, derive
from troth.protocol.broadcast.announcement import Announcement, Timing
from troth.protocol.broadcast.channel import AgreedChannel
from troth.protocol.broadcast.observed import ObservedAnnouncement
from troth.protocol.broadcast.signed_slots import SignedSlotsInMemory
from troth.protocol.core.coins import Coins, SeededEntropy
from troth.protocol.core.parts import opens
from troth.protocol.core.records import StepRecord
from troth.protocol.core.rejoin import is_request
from troth.protocol.core.roles import PendingAudits, Roles, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.core.state import State
from troth.protocol.recovery.member import Member
from troth.protocol.step import checks as checks_module
from troth.protocol.step import step as step_module
from troth.protocol.step.attempt import Attempt, AttemptAborted, Clipped, signs_last
from troth.protocol.step.checks import suspicious_parts
from troth.protocol.step.trials import Trials, heard_audits
from troth.protocol.wire.frames import Certificate
from troth.protocol.wire.messages import SignedRejoin
from troth.protocol.wire.primitives import Primitives
from troth.simulation.chaos.draws import DRAWS
from troth.simulation.chaos.plan_file import load
from troth.simulation.chaos.workers import verdict_on
from troth.simulation.chaos.world import Plan

STEPS = 12
SEEDS = Path(__file__).with_name("planted_seeds.json")

Plant = Callable[[], AbstractContextManager[Any]]
Where = tuple[str, int, int] | str  # which worlds, which of them, and how many steps of it; or the file of a plan


def _instead_of(original: Callable[..., Any], replacement: Callable[..., Any]) -> ExitStack:
    """Wherever the protocol calls it; checkers and evidence go on with the original."""
    stack, name = ExitStack(), original.__name__
    for module in [module for path, module in sys.modules.items() if path.startswith("troth.protocol.")]:
        if module.__dict__.get(name) is original:
            stack.enter_context(patch.object(module, name, replacement))
    return stack


# Announcing (SPEC Q1–Q8)


def _as_if_earlier(name: str, rounds: Callable[[Announcement], int]) -> Any:
    """What this method hears is judged as so many rounds before."""
    original = getattr(Announcement, name)

    def lenient(self: Announcement, *given: Any) -> None:
        earlier = rounds(self)
        self._round_now -= earlier
        original(self, *given)
        self._round_now += earlier

    return patch.object(Announcement, name, lenient)


@contextmanager
def _one_signature_short() -> Iterator[None]:
    with _as_if_earlier("_hear_chained", lambda _: 1), _as_if_earlier("_hear_certificate", lambda _: 1):
        yield


def _certificate_exempt() -> Any:
    return _as_if_earlier("_hear_certificate", lambda announcement: announcement._round_now)


def _certificates_kept() -> Any:
    original = Announcement.take

    def quiet(self: Announcement) -> list[Any]:
        return [frame for frame in original(self) if not isinstance(frame, Certificate)]

    return patch.object(Announcement, "take", quiet)


def _certificate_unchecked() -> Any:
    def believed(self: Announcement, certificate: Certificate) -> bool:
        return set(certificate.views) == set(self._members)

    return patch.object(Announcement, "_proves", believed)


def _first_of_two_taken() -> Any:
    original = Announcement._decide_by_chains

    def lenient(self: Announcement, now: float) -> None:
        self._accepted = {peer: dict(list(values.items())[:1]) for peer, values in self._accepted.items()}
        original(self, now)

    return patch.object(Announcement, "_decide_by_chains", lenient)


def _deadline_from_the_local_clock() -> Any:
    original = AgreedChannel._open

    def local(self: AgreedChannel, slot: Slot) -> Timing:
        return replace(original(self, slot), start=self._link.now())

    return patch.object(AgreedChannel, "_open", local)


def _pace_of_ones_own() -> Any:
    original = AgreedChannel._open

    def own(self: AgreedChannel, slot: Slot) -> Timing:
        self.next_timeouts = self.bounds.after([self._latency.took()])
        return original(self, slot)

    return patch.object(AgreedChannel, "_open", own)


def _relays_not_passed_on() -> Any:
    return patch.object(AgreedChannel, "_pass_on", lambda *_: None)


# Checks and trials (SPEC V1, V2, T1–T7)


def _v2_skipped() -> Any:
    return _instead_of(suspicious_parts, lambda *_: set())


def _v1_skipped() -> Any:
    return _instead_of(step_module.wrong_reporters, lambda *_: [])


def _v2_with_local_floats() -> Any:
    turn = count()

    def local(*given: Any) -> set[int]:
        share = 0.75 + 0.05 * (7 * next(turn) % 11)  # up to a quarter more or less

        def tolerance(*numbers: Any, **scales: Any) -> float:
            return share * residual_tolerance(*numbers, **scales)

        with patch.object(checks_module, "residual_tolerance", tolerance):
            return suspicious_parts(*given)

    return _instead_of(suspicious_parts, local)


def _banned_go_on_voting() -> Any:
    original = Roster.after

    def after(self: Roster, record: StepRecord) -> Roster:
        roster = original(self, record)
        return replace(roster, members=tuple(sorted({*roster.members, *(set(self.members) & set(record.banned))})))

    return patch.object(Roster, "after", after)


def _paths_unchecked() -> Any:
    return _instead_of(opens, lambda *_: True)


def _ban_one_step_early_at_one_peer() -> Any:
    original = step_module.conclude

    def early(attempt: Attempt[Any], *given: Any) -> Any:
        reduced, reported, accuses, trials, link_disputes = given
        if attempt.context.peer.me == attempt.context.state.roster.members[0]:
            accuses = {peer: said for peer, said in accuses.items() if peer not in trials.banned}
        return original(attempt, reduced, reported, accuses, trials, link_disputes)

    return _instead_of(original, early)


# Audits and randomness (SPEC R1–R7, N2, B4)


def _audits_unheard() -> Any:
    return _instead_of(heard_audits, lambda *_: ())


def _drawn_otherwise(change: Callable[[Roster, PendingAudits], tuple[Roster, PendingAudits]]) -> Any:
    def otherwise(run: Any, roster: Roster, randomness: Any, due: PendingAudits) -> Roles:
        changed, owed = change(roster, due)
        return draw_roles(run, changed, randomness, owed)

    return _instead_of(draw_roles, otherwise)


def _absent_not_audited() -> Any:
    def present(roster: Roster, due: PendingAudits) -> tuple[Roster, PendingAudits]:
        return roster, replace(due, contributors=tuple(p for p in due.contributors if p in roster.members))

    return _drawn_otherwise(present)


def _owed_audits_dropped() -> Any:
    return patch.object(Trials, "lost_audits", lambda *_: ((), ()))


def _returned_not_audited() -> Any:
    return _drawn_otherwise(lambda roster, due: (replace(roster, returns=()), due))


def _single_coin() -> Any:
    original = SeededEntropy.coins

    def single(self: SeededEntropy, step: int, attempt: int) -> Coins:
        return Coins(*2 * (original(self, step, attempt).a,))

    return patch.object(SeededEntropy, "coins", single)


def _coin_reused() -> Any:
    original = Attempt.again

    def again(self: Attempt[Any], why: AttemptAborted) -> Attempt[Any]:
        return replace(original(self, why), coins=self.coins)

    return patch.object(Attempt, "again", again)


# Going on, and coming back (SPEC N4, F2, B1–B5, U2)


def _minority_goes_on() -> Any:
    return patch.object(Attempt, "need_quorum", lambda _self, _heard: None)


def _record_not_compared() -> Any:
    return _instead_of(signs_last, lambda *_: True)


def _without_a_certificate() -> Any:
    return patch.object(Attempt, "need_certificate", lambda _self: None)


def _not_said_again() -> Any:
    """Whoever lacks an aggregate goes by what others say in Reveal, and is left out (SPEC N6)."""

    async def unasked(_attempt: Attempt[Any], clipped: Clipped, _undecided: list[int]) -> Clipped:
        return clipped

    return _instead_of(step_module.confirm, unasked)


def _majority_of_those_left() -> Any:
    """What was believed before: more than half, however many liars there may be."""
    return patch.object(Roster, "quorum", property(lambda self: len(self.members) // 2 + 1))


def _begins_with_a_quorum() -> Any:
    return patch.object(Roster, "restart_quorum", property(lambda self: self.quorum))


def _feuds_not_remembered() -> Any:
    original = Roster.after

    def after(self: Roster, record: StepRecord) -> Roster:
        return replace(original(self, record), link_disputes=())

    return patch.object(Roster, "after", after)


@contextmanager
def _signed_again_after_a_crash() -> Iterator[None]:
    """The journal is forgotten. A machine that starts again tosses other coins, so that what it signs is another message."""
    original, lives = SeededEntropy.coins, count()

    def fresh(self: SeededEntropy, step: int, attempt: int) -> Coins:
        member = self.__dict__.setdefault("life", next(lives))
        return Coins(
            *(derive(coin, member) for coin in (original(self, step, attempt).a, original(self, step, attempt).b))
        )

    with patch.object(SignedSlotsInMemory, "claim", lambda *_: None), patch.object(SeededEntropy, "coins", fresh):
        yield


def _first_teller_believed() -> Any:
    original = ObservedAnnouncement.__init__

    def gullible(self: ObservedAnnouncement, slot: Slot, members: Any, _quorum: int, *given: Any) -> None:
        original(self, slot, members, 1, *given)

    return patch.object(ObservedAnnouncement, "__init__", gullible)


def _requests_unchecked() -> Any:
    def lenient(_slot: Slot, rejoin: SignedRejoin, roster: Roster, _tools: Primitives) -> bool:
        return roster.absent_since(PeerId(rejoin.member)) is not None

    return _instead_of(is_request, lenient)


def _same_incarnation() -> Any:
    return patch.object(AgreedChannel, "next_incarnation", lambda _self, now: now)


def _due_after_a_new_beginning() -> Any:
    return patch.object(State, "restarted", lambda self, incarnation: replace(self, incarnation=incarnation))


def _nothing_borrowed() -> Any:
    return patch.object(Member, "_borrow", lambda *_: None)


PLANTED: Mapping[str, Plant] = {
    "a chain accepted one signature short": _one_signature_short,
    "a certificate exempt from the chain rule": _certificate_exempt,
    "certificates kept to oneself (quiet deciders that leave the others alone)": _certificates_kept,
    "a certificate trusted without its signatures": _certificate_unchecked,
    "the first of two equivocating values taken": _first_of_two_taken,
    "V2 skipped": _v2_skipped,
    "V1 skipped": _v1_skipped,
    "votes counted from those already out": _banned_go_on_voting,
    "a single coin": _single_coin,
    "a ban applied one step early at one peer": _ban_one_step_early_at_one_peer,
    "a coin reused across attempts": _coin_reused,
    "V2's threshold computed from local floats": _v2_with_local_floats,
    "a slot signed again after a crash": _signed_again_after_a_crash,
    "deadlines taken from the local clock": _deadline_from_the_local_clock,
    "everyone keeps the pace that it measured itself": _pace_of_ones_own,
    "who has left is not audited": _absent_not_audited,
    "an owed audit forgotten": _owed_audits_dropped,
    "a minority goes on": _minority_goes_on,
    "audits not heard": _audits_unheard,
    "relays not passed on": _relays_not_passed_on,
    "who came back is not audited": _returned_not_audited,
    "an onlooker believes the first who tells it": _first_teller_believed,
    "a request to come back counts whoever signed it": _requests_unchecked,
    "feuds not remembered": _feuds_not_remembered,
    "Merkle paths not checked": _paths_unchecked,
    "records not compared when they are signed": _record_not_compared,
    "a step goes on without the certificate of the record before": _without_a_certificate,
    "an undecided aggregate is not said again": _not_said_again,
    "a quorum is more than half of those left": _majority_of_those_left,
    "a run begins anew with a quorum": _begins_with_a_quorum,
    "a step made again under the same incarnation": _same_incarnation,
    "audits stay due when a run begins anew": _due_after_a_new_beginning,
    "what was signed is not taken from those who wait": _nothing_borrowed,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    with PLANTED[name]():
        yield


NOT_PLANTED: Mapping[str, str] = {  # and why
    "votes counted from those who are out since an earlier attempt of the same step": "It breaks nothing: a verdict needs more "
    "than half of the members at step start, in or out (T4), and liars are fewer than that.",
    "a value, not a certificate, accepted one signature short": "It breaks nothing: f liars make f − 1 signatures beside "
    "its originator, so the last round is to spare for values (decision 11).",
    "feuds never forgotten": "They are to be after 1000 steps, and no world is that long.",
    "a ban does not reach the heir": "A key's work is judged at most two steps later (R4, R7), and it is back under another "
    "three steps later at the earliest, or two if it does not look on. So it takes an audit that was lost and done in the very "
    "step of the return, of a liar that comes back: none is drawn. tests/protocol/recovery/test_member.py has it.",
}


@dataclass(frozen=True)
class Find:
    """A world that breaks a promise with the bug, and none without."""

    where: Where
    broken: str

    @property
    def seed(self) -> int:
        assert not isinstance(self.where, str)
        return self.where[1]

    @property
    def checker(self) -> str:
        return self.broken.split(":")[0]

    @property
    def row(self) -> str:
        """Worlds, seed and steps, for people."""
        if isinstance(self.where, str):
            return f"[as planned](../tests/simulation/{self.where}) | | {plan_of(self.where).steps}"
        return " | ".join(map(str, self.where))


def plan_of(where: Where) -> Plan:
    """Drawn for so many steps as all are, whatever is played of it: else it would be another world."""
    if isinstance(where, str):
        return load(SEEDS.parent / where).smallest
    worlds, seed, steps = where
    return replace(DRAWS[worlds](seed, steps=STEPS), steps=steps)


def broken_by(name: str | None, where: Where) -> list[str]:
    """With this bug, or with none."""
    with PLANTED[name]() if name is not None else ExitStack():
        return verdict_on(plan_of(where)).broken


def find_at(name: str, where: Where) -> Find | None:
    broken = broken_by(name, where)
    return Find(where, broken[0]) if broken and not broken_by(None, where) else None


def find(name: str, worlds: str, seed: int) -> Find | None:
    """Whether this seed finds it; in as few steps as show it."""
    found, least, steps = find_at(name, (worlds, seed, STEPS)), 1, STEPS
    while found and least < steps:
        middle = (least + steps) // 2
        shorter = find_at(name, (worlds, seed, middle))
        found = shorter or found
        least, steps = (least, middle) if shorter else (middle + 1, steps)
    return found


def search(names: list[str], worlds: str, seeds: range, processes: int) -> Iterator[tuple[str, Find | None]]:
    """The first seed of each, as they are found; all processes are busy until the last."""
    left = {name: iter(seeds) for name in names}
    tried = Counter[str]()
    running: dict[Future[Find | None], str] = {}
    best: dict[str, Find] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        while left or running:
            while left and len(running) < processes:
                name = min(left, key=tried.__getitem__)
                seed = next(left[name], None)
                tried[name] += 1
                if seed is None:
                    del left[name]
                    if name not in running.values():
                        yield name, best.get(name)
                else:
                    running[pool.submit(find, name, worlds, seed)] = name
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name, found = running.pop(future), future.result()
                if found is not None:
                    best[name] = min(found, best.get(name, found), key=lambda one: one.seed)
                    left.pop(name, None)
                if name not in left and name not in running.values():
                    yield name, best.get(name)


def seeds_of_tests() -> dict[str, Where]:
    return {
        name: where if isinstance(where, str) else (where[0], where[1], where[2])
        for name, where in json.loads(SEEDS.read_text()).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Look for the first seed that finds each planted bug.")
    parser.add_argument("seeds", nargs="?", default="0..300")
    parser.add_argument("--only", default="", help="bugs with this in their name")
    parser.add_argument("--worlds", choices=sorted(DRAWS), default="classic", help="how they are drawn")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", action="store_true", help="as markdown")
    parser.add_argument("--json", action="store_true", help="as the tests read it")
    asked = parser.parse_args()
    first, last = map(int, asked.seeds.split(".."))
    names, found = [name for name in PLANTED if asked.only in name], dict[str, Find | None]()
    planned = {name: where for name, where in seeds_of_tests().items() if name in names and isinstance(where, str)}
    drawn = search([name for name in names if name not in planned], asked.worlds, range(first, last), asked.processes)
    for name, one in chain(((name, find_at(name, where)) for name, where in planned.items()), drawn):
        found[name] = one
        if not asked.table and not asked.json:
            print(f"{name}: {f'{one.where}, {one.broken}' if one else 'not found'}", flush=True)
    if asked.json:
        kept = {name: one.where for name in names if (one := found[name]) is not None}
        print(json.dumps(kept, indent=2, ensure_ascii=False))
    if asked.table:
        print("| bug | worlds | seed | steps | checker |\n| --- | --- | --- | --- | --- |")
        for name in names:
            one = found[name]
            print(f"| {name} | {one.row} | {one.checker} |" if one else f"| {name} | | not found | | |")
        print("\nNot planted:\n")
        for name, why in NOT_PLANTED.items():
            print(f"- *{name}.* {why}")


if __name__ == "__main__":
    main()
