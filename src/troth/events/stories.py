"""Trials as stories: what was claimed, what was recomputed, how it ended, in plain sentences."""

from troth.events.kinds import Ballot, Trial

_CLAIMS = {
    "gradient": "{target} committed to a gradient in step {step}. It has to follow from a public seed.",
    "deviation": "{target} committed to a gradient in step {step}. It has to follow from a public seed, but for "
    "what other hardware changes.",
    "audited_report": "{target} reported in step {step} how its gradient lies to the aggregate. That follows from its gradient.",
    "report": "{target} reported how part {part} of its gradient lies to the aggregate. That follows from what it committed to.",
    "aggregate": "{target} announced the aggregate of part {part}. It has to be the clipped centre of the parts that all sent.",
    "cover": "{target} owned part {part} in step {step}. An owner has to object to wrong reports about its part.",
    "equivocation": "{target} signed two different messages for one announcement of step {step}, and sent each to some.",
}
_FOUND = {
    "gradient": "{accuser} drew its audit, computed the gradient again, got another one, and accused it.",
    "deviation": "{accuser} drew its audit, computed the gradient again, found it too far off, and accused it.",
    "audited_report": "{accuser} drew its audit, computed gradient and report again, and accused it of the report.",
    "report": "{accuser}, who owns that part, compared it with the part it had received, and accused it.",
    "aggregate": "{accuser} computed it again, and accused it.",
    "cover": "{accuser} found that report in an audit, and accused the owner.",
}
_NOBODY = {
    "equivocation": "Both signatures are right: that proves it, and no vote is needed.",
    "cover": "Nobody accused it by name: an audited report was computed again, and with it what owners had let pass.",
}
# Whoever disputed the part, or whether its public numbers did: an honest owner comes into such a trial too, and is acquitted.
_PUBLIC = "Nobody accused it by name: part {part} was disputed, so everyone computed it again."
_SIDES: tuple[Ballot, ...] = ("accused", "accuser", "withheld")
_MOST_NAMED = 4
_AUDITS = ("gradient", "audited_report", "deviation")


def story_of(trial: Trial) -> tuple[str, ...]:
    """Sentences about a trial, in the order in which things happened."""
    words = {"target": trial.target, "accuser": trial.accuser, "step": trial.step, "part": trial.part}
    claim = _CLAIMS[trial.kind].format(**words)
    if trial.accuser is None:
        found = _NOBODY.get(trial.kind, _PUBLIC).format(**words)
    else:
        found = _FOUND.get(trial.kind, "{accuser} accused it.").format(**words)
    return tuple(one for one in (claim, found + _others(trial), _vote(trial), _end(trial)) if one)


def _others(trial: Trial) -> str:
    if not trial.also:
        return ""
    named, more = trial.also[:_MOST_NAMED], len(trial.also) - _MOST_NAMED
    names = [*named, f"{more} others"] if more > 1 else list(trial.also)
    return f" So did {', '.join(names[:-1])} and {names[-1]}." if len(names) > 1 else f" So did {names[0]}."


def _vote(trial: Trial) -> str:
    """How the others voted. Liars vote too, so what they say is told as what they say."""
    if not trial.votes:
        return ""
    counts = {side: sum(ballot == side for ballot in trial.votes.values()) for side in _SIDES}
    found = ", ".join(f"{count} say {_guilty(trial, side)}" for side, count in counts.items() if count)
    return f"{len(trial.votes)} members voted, each on what it computed itself: {found}. {trial.quorum} votes decide."


def _guilty(trial: Trial, side: Ballot) -> str:
    if side == "withheld":
        return f"{trial.target} did not show what it was asked for"
    if side == "accuser" and trial.accuser is None:
        return f"{trial.target} is right"
    return f"{trial.target if side == 'accused' else trial.accuser} is wrong"


def _end(trial: Trial) -> str:
    if trial.banned is not None:
        why = "" if trial.banned == trial.target else f" for accusing {trial.target} falsely"
        return f"{trial.banned} is banned{why}."
    if trial.verdict == "withheld":
        return f"{trial.target} is out, without a ban."
    if trial.verdict == "accuser":
        return f"{trial.target} is acquitted."
    again = ", and the work is still to be audited" if trial.kind in _AUDITS else ""
    return f"Neither side has enough votes: nobody is banned{again}."
