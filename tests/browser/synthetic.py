"""Runs that never happened, as events: bans, absences, returns, newcomers, trials with votes. The page cannot tell."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from troth.events.kinds import (
    Audit,
    Ballot,
    Ban,
    Began,
    Candidate,
    Ended,
    Event,
    KnownPeer,
    Link,
    Noted,
    PhaseTime,
    Returned,
    Status,
    Stepped,
    Trial,
)

PHASES = ("Commit", "Clip", "Reveal", "Confirm", "Report", "Accuse", "Vote")
START = 1_790_000_000.0


@dataclass
class _Run:
    """A run under way: who is a member, who is away since when, who is on probation."""

    random: random.Random
    members: list[str]
    liars: set[str]
    away: dict[str, int] = field(default_factory=dict)
    candidates: dict[str, int] = field(default_factory=dict)
    caught: int = -1  # the last step in which somebody was
    before: list[str] = field(default_factory=list)  # who contributed in the step before
    bans: int = 0


def name(number: int) -> str:
    return f"peer-{number:03}"


def events(
    peers: int = 16, steps: int = 120, *, seed: int = 0, live: bool = True, ended: bool = True
) -> Iterator[Event]:
    """A whole run. `live`: with times, as a member tells it; else as a simulation does, which knows who lies."""
    draw = random.Random(seed)
    names = [name(number) for number in range(peers)]
    liars = set(draw.sample(names[1:], peers // 5))
    run = _Run(draw, list(names), liars)
    yield Began(
        source="member" if live else "simulation",
        of=steps,
        peers=tuple(
            KnownPeer(name=one, key=f"{at:064x}", liar=not live and one in liars) for at, one in enumerate(names)
        ),
        run="5f3a" * 16,
        name="autumn",
        task="digits:hidden=64",
        me=names[0] if live else "",
        withstands=len(liars),
        quorum=peers // 2 + 1,
        validators=max(1, peers // 8),
        probation=12,
        manifest="run.toml",
        at=START,
    )
    yield Noted(text="All founders are here: the run begins.", at=START)
    for step in range(steps):
        yield _step(run, step, steps, live)
    if ended:
        yield Ended(how="over", text=f"{steps} updates", at=START + 2.0 * steps)


def _step(run: _Run, step: int, steps: int, live: bool) -> Stepped:
    draw, members = run.random, run.members
    validators = sorted(draw.sample(members, max(1, len(members) // 8)))
    silent = [one for one in members if one not in validators and draw.random() < 0.002]
    audits = _audits(run, step, validators)
    trials, bans = _trials(run, step, audits)
    left = tuple(one for one in silent if draw.random() < 0.5)
    back = tuple(one for one, since in run.away.items() if step - since > 8 and draw.random() < 0.2)
    joined, candidates = _door(run, step)
    owners = tuple(draw.sample(sorted(set(members) - set(validators)), len(members) - len(validators)))
    run.before = [one for one in members if one not in validators and one not in silent]
    gone = {ban.peer for ban in bans} | set(left)
    run.members = [one for one in members if one not in gone] + list(back) + list(joined)
    run.away = {one: since for one, since in run.away.items() if one not in back} | dict.fromkeys(left, step)
    run.bans += len(bans)
    if bans:
        run.caught = step
    loss = 0.25 + 2.1 * math.exp(-step / (0.3 * steps)) + draw.gauss(0, 0.03) + (0.25 if bans else 0.0)
    seconds = 1.2 + draw.expovariate(2.0)
    return Stepped(
        step=step,
        updates=step + 1,
        of=steps,
        members=len(run.members),
        loss=None if step == 3 else loss,
        metrics={"accuracy": 0.1 + 0.86 * (1 - math.exp(-step / (0.25 * steps)))} if step % 5 == 0 else {},
        moved=not (40 <= step < 43),
        withstands=max(0, len(run.liars) - run.bans),
        quorum=len(run.members) // 2 + 1,
        seconds=seconds if live else None,
        at=START + 2.0 * step if live else None,
        validators=tuple(validators),
        audits=audits,
        silent=tuple(silent),
        owners=owners,
        trials=trials,
        banned=bans,
        left=left,
        returned=tuple(Returned(peer=one) for one in back),
        joined=joined,
        candidates=candidates,
        phases=_phases(draw, seconds, members) if live else (),
        control_bytes=40_000 * step,
        bulk_bytes=1_300_000 * step,
        sent_bytes=1_250_000 * step,
        received_per_parameter=2.61,
        sent_per_parameter=2.5,
        delta_s=0.5,
    )


def _audits(run: _Run, step: int, validators: list[str]) -> tuple[Audit, ...]:
    """Validators audit one contributor of the step before; once somebody was caught, everyone audits five."""
    if not run.before:
        return ()
    auditors, each = (run.members, 5) if run.caught == step - 1 >= 0 else (validators, 1)
    return tuple(
        Audit(auditor, target, step - 1)
        for auditor in auditors
        for target in run.random.sample(run.before, min(each, len(run.before)))
        if target != auditor
    )


def _trials(run: _Run, step: int, audits: tuple[Audit, ...]) -> tuple[tuple[Trial, ...], tuple[Ban, ...]]:
    trials: list[Trial] = []
    bans: list[Ban] = []
    tried: set[str] = set()
    for audit in audits:
        guilty = audit.target in run.liars and step > 10
        false = not guilty and run.random.random() < 0.0005
        if (not guilty and not false) or audit.target in tried or audit.target not in run.members:
            continue
        tried.add(audit.target)
        trials.append(_trial(run, audit, guilty, step))
        if guilty:
            bans.append(Ban(peer=audit.target, reason="a wrong gradient", evidence=trials[-1].evidence))
    if step == 30 and len(run.members) > 8:  # everybody saw this one: no trial
        liar = next((one for one in run.members if one in run.liars and one not in tried), None)
        if liar is not None:
            bans.append(Ban(peer=liar, reason="signed two different messages for one slot"))
    return tuple(trials), tuple(bans)


def _trial(run: _Run, audit: Audit, guilty: bool, step: int) -> Trial:
    def ballot(juror: str) -> Ballot:
        if juror in run.liars:
            return "accuser"
        return "accused" if guilty else "accuser"

    verdict = "banned" if guilty else "the accusation is dismissed"
    return Trial(
        kind="gradient",
        target=audit.target,
        accuser=audit.auditor,
        step=audit.step,
        verdict="accused" if guilty else "dismissed",
        banned=audit.target if guilty else None,
        votes={juror: ballot(juror) for juror in run.members if juror != audit.target},
        quorum=len(run.members) // 2 + 1,
        story=(
            f"In step {audit.step}, {audit.target} committed to a gradient for the batch that its seed drew.",
            f"{audit.auditor} computed that gradient again, and found another one: 412 of 4,810 numbers differ.",
            f"Everyone computed it once more. {len(run.members) // 2 + 2} found what {audit.auditor} had found: {verdict}.",
        ),
        evidence=f"ban-step{step}-{audit.target}.json" if guilty else "",
    )


def _door(run: _Run, step: int) -> tuple[tuple[str, ...], tuple[Candidate, ...]]:
    if step % 50 == 20:
        run.candidates[f"newcomer-{step}"] = 0
    run.candidates = {one: worked + 1 for one, worked in run.candidates.items()}
    joined = tuple(one for one, worked in run.candidates.items() if worked >= 12)
    told = tuple(Candidate(name=one, worked=worked, needed=12) for one, worked in run.candidates.items())
    for one in joined:
        del run.candidates[one]
    return joined, told


def _phases(draw: random.Random, seconds: float, members: list[str]) -> tuple[PhaseTime, ...]:
    phases = []
    now = 0.02
    for phase in PHASES:
        length = seconds * (0.45 if phase == "Commit" else 0.07) * draw.uniform(0.7, 1.3)
        last = (draw.choice(members),) if draw.random() < 0.6 else ()
        phases.append(PhaseTime(phase=phase, began=now, ended=now + length, last=last))
        now += length + 0.01
    return tuple(phases)


def status(run: list[Event], peers: int) -> Status:
    """A member in the step after the last."""
    last = next(event for event in reversed(run) if isinstance(event, Stepped))
    links = tuple(
        Link(
            peer=name(number),
            connected=number != 3,
            received_bytes=1_000_000 * number,
            sent_bytes=900_000 * number,
            latency_s=None if number == 3 else 0.004 * number,
            timeouts=int(number == 3) * 7,
            lost=int(number == 3),
            trouble="it answers no call: connection refused" if number == 3 else "",
        )
        for number in range(1, peers)
    )
    return Status(
        doing="training",
        at=START + 500,
        started_at=START,
        me=name(0),
        step=last.step + 1,
        updates=last.updates,
        of=last.of,
        phase="Vote",
        unheard=(name(3), name(5)),
        members=last.members,
        seconds=1.9,
        delta_s=0.5,
        received_bytes=52_000_000,
        sent_bytes=48_000_000,
        received_per_parameter=2.61,
        sent_per_parameter=2.5,
        memory_bytes=412_000_000,
        links=links,
    )
