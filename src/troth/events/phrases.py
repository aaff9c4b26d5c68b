"""Events in words for people: the news of a step, its line, and why a run pauses."""

from collections.abc import Mapping

from troth.events.kinds import Ballot, Stepped, Trial


def sentences(event: Stepped) -> list[str]:
    """Everything about a step that is worth a line of its own."""
    news = [
        *(["the run goes on, after too many had stopped"] if event.restarted else []),
        *(f"{ban.peer} is banned: {ban.reason}" for ban in event.banned),
        *(f"{name} is absent, and no longer a member" for name in event.left),
        *(f"{name} is expelled: its connection failed too often" for name in event.expelled),
        *(
            f"{one} and {other} do not hear each other, as one of them says: the others pass on what they say. If both are well, "
            "one of them should open its port to the other"
            for one, other in event.link_disputes
        ),
        *(f"{name} joined, after its probation" for name in event.joined),
        *(f"{one.peer} is back" + (f" (new key {one.key})" if one.key else "") for one in event.returned),
        *event.news,
        *(["the last step is audited, and the run is closed"] if event.closing else []),
    ]
    return [f"{when(event)}: {one}" for one in news]


def when(event: Stepped) -> str:
    """The step, as records and evidence count it; with the updates so far where pauses set the two apart."""
    apart = event.updates not in (event.step + 1, event.step)
    return f"step {event.step}" + (f" (update {event.updates})" if apart else "")


def is_paused(event: Stepped) -> bool:
    """Whether the model did not move in this step, though it is not the one that closes the run."""
    return not event.moved and not event.closing


def pause(event: Stepped) -> str | None:
    """Why the model did not move in this step, who is missing, and what to do; None if it moved."""
    if not is_paused(event):
        return None
    if event.unjudged:
        return f"{when(event)} did not move the model: no quorum judged one of its parts; audits find who lied"
    if event.members >= event.needed:
        return f"{when(event)} did not move the model; enough are back, and the next one does"
    gone = event.ever - event.members
    names = f" ({', '.join(event.away)})" if event.away else ""
    liars = event.withstands
    among = f"with up to {liars} liar{'' if liars == 1 else 's'} among them " if liars else ""
    return (
        f"paused: {gone} of {event.ever} {'is' if gone == 1 else 'are'} gone{names}, and {among}{event.needed} are needed to "
        f"train; nothing is lost, steps and schedule wait. {_way_out(event)}"
    )


def _way_out(event: Stepped) -> str:
    fresh = "begin a new run from this model with those who are left: troth new --from FOLDER"
    if event.members + len(event.away) < event.needed:
        return f"Too many can never come back: {fresh}"
    return f"They come back with the same command as before; if they never will, {fresh}"


def withstanding(liars: int | None) -> str:
    """How many liars there may still be; nothing with a trusted server, which promises nothing. None may once as many are banned
    as the run withstands: that is how it should end, and "withstands 0" would read as an alarm."""
    if liars is None:
        return ""
    return f"withstands {liars}" if liars else "no liars expected"


def line(event: Stepped, metrics: str) -> str:
    """The state of the run, in one line."""
    observing = "  (observing)" if event.observed else ""
    if is_paused(event):
        observing += "  paused"
    if event.attacked:
        observing += "  under attack"
    slow = f"  Δ {event.delta_s:.1f} s" if event.delta_s > event.least_delta_s else ""
    loss = "–" if event.loss is None else f"{event.loss:.3f}"  # a peer that only observes has computed none yet
    measured = f"{metrics}  " if metrics else ""
    seconds = "" if event.seconds is None else f"  {event.seconds:.2f} s a step"
    withstands = "" if event.withstands is None else f"  {withstanding(event.withstands)}"
    return (
        f"step {event.updates}/{event.of}  batch loss {loss}  {measured}peers {event.members}"
        f"{withstands}{seconds}{slow}{observing}"
    )


def duration(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def time_left(seconds: float | None) -> str:
    """Estimated time to the end of the run, to go on a line with."""
    return f"  about {duration(seconds)} left" if seconds else ""


def per_parameter(received: float | None, sent: float | None) -> str:
    """Bytes for each parameter and gradient; nothing where none were measured."""
    return (
        ""
        if received is None or sent is None
        else f"{_digits(received)} B in, {_digits(sent)} B out a parameter and gradient"
    )


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.2g}"


def traffic(event: Stepped) -> str:
    received = event.control_bytes + event.bulk_bytes
    return f"{received / 1e6:.1f} MB in, {event.sent_bytes / 1e6:.1f} MB out"


def metrics_in_words(metrics: Mapping[str, float]) -> str:
    """A model's metrics; its loss is not the one of a peer's last batch, so it has a name of its own."""
    return "  ".join(_metric(name, value) for name, value in metrics.items())


def _metric(name: str, value: float) -> str:
    if name == "accuracy":
        return f"accuracy {value:.1%}"
    return f"{'test loss' if name == 'loss' else name} {value:.4g}"


# Trials as stories: what was claimed, what was recomputed, how it ended, in plain sentences.

_CLAIMS = {
    "gradient": "{target} committed to a gradient in step {step}. It has to follow from a public seed.",
    "deviation": "{target} committed to a gradient in step {step}. It has to follow from a public seed, but for "
    "what other hardware changes.",
    "audited_report": "{target} reported in step {step} how its gradient lies to the aggregate. That follows from its gradient.",
    "report": "{target} reported how part {part} of its gradient lies to the aggregate. That follows from what it committed to.",
    "aggregate": "{target} announced the aggregate of part {part}. It has to be the clipped centre of the parts that all sent.",
    "cover": "{target} owned part {part} in step {step}. An owner has to object to wrong reports about its part.",
    "rounding": "{target} announced the aggregate of part {part}. Each of its numbers has to be where the parts that all sent "
    "pull it.",
    "equivocation": "{target} signed two different messages for one announcement of step {step}, and sent each to some.",
}
_FOUND = {
    "gradient": "{accuser} drew its audit, computed the gradient again, got another one, and accused it.",
    "deviation": "{accuser} drew its audit, computed the gradient again, found it too far off, and accused it.",
    "audited_report": "{accuser} drew its audit, computed gradient and report again, and accused it of the report.",
    "report": "{accuser}, who owns that part, compared it with the part it had received, and accused it.",
    "aggregate": "{accuser} computed it again, and accused it.",
    "cover": "{accuser} found that report in an audit, and accused the owner.",
    "rounding": "{accuser} drew a leaf of it, found a number too far off, and accused it.",
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
