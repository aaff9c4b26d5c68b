"""A ban, told to the peer that is banned: it may be honest, and its memory or its versions at fault."""

from collections.abc import Iterator
from pathlib import Path

from troth.events.kinds import Stepped, Trial
from troth.evidence.bans import evidence_name

_HARDWARE = (
    "this machine's memory (a memory test), and whether it computes what the others' machines do: compare what "
    "'troth doctor --task {task}' shows on both, and the versions of Troth and PyTorch"
)
_TWICE = "whether a second process had this key, or an older copy of the folder was put back: both sign again what was signed"
_CHECKS = {"equivocation": _TWICE}


def explain_ban(event: Stepped, me: str, unsigned: Path | None, task: str, *, door: bool) -> Iterator[str]:
    """Lines for people: what was claimed, what came out, who voted, where the evidence is, what to check, and whether there is a
    way back. `event` is the step of the ban, `unsigned` what this peer itself holds of the evidence."""
    trial = next((one for one in event.trials if one.banned == me), None)
    yield from () if trial is None else _trial(trial)
    others = f"{evidence_name(event.step, me)} in the folder 'evidence' of every other member"
    own = "" if unsigned is None else f"{unsigned}, as far as this peer holds it; with the others' signatures, "
    yield f"evidence: {own}{others}: 'troth verify FILE --run run.toml' checks that, and computes it again"
    kind = "" if trial is None else trial.kind
    yield f"if this peer is honest, check {_CHECKS.get(kind, _HARDWARE).format(task=task)}"
    fresh = "With a new key (troth key new) it may come in by the door, and earn a place; or found" if door else "Found"
    yield f"a ban is for good: this key cannot come back into this run. {fresh} another run with the others (troth new)"


def _trial(trial: Trial) -> Iterator[str]:
    yield f"why: {' '.join(trial.story)}"
    by_ballot: dict[str, list[str]] = {}
    for voter, ballot in trial.votes.items():
        by_ballot.setdefault(ballot, []).append(voter)
    if by_ballot:
        found = {
            "accused": f"{trial.target} is wrong",
            "accuser": f"{trial.target} is right",
            "withheld": "it did not show its work",
        }
        yield "votes: " + "; ".join(f"{', '.join(voters)}: {found[ballot]}" for ballot, voters in by_ballot.items())
