"""Events as lines for a terminal. Names and reasons come from strangers: whatever leaves here is printable."""

from collections.abc import Iterator, Mapping

from troth.errors import printable
from troth.events import words
from troth.events.kinds import Began, Ended, Event, Noted, Stepped, Trial


def sentences(event: Event) -> Iterator[str]:
    """Whatever about an event is worth a line of its own."""
    yield from map(printable, _sentences(event))


def _sentences(event: Event) -> Iterator[str]:
    match event:
        case Began():
            liars = "" if event.withstands is None else f", of whom {event.withstands} may lie"
            yield f"{event.name or event.task or 'a run'}: {event.of} steps with {len(event.peers)} peers{liars}"
        case Noted():
            yield event.text
        case Ended():
            yield f"the end: {event.text or event.how}"
        case Stepped():
            if (why := words.pause(event)) is not None:
                yield why
            yield from words.sentences(event)
            yield from (f"{words.when(event)}: {_unconvicted(trial)}" for trial in event.trials if trial.banned is None)


def _unconvicted(trial: Trial) -> str:
    """A trial that banned nobody. Where a part was disputed, its owner was accused by nobody."""
    how = {"withheld": f"{trial.target} is out", "accuser": "acquitted"}.get(trial.verdict, "dismissed")
    who = "a disputed part:" if trial.accuser is None else f"{trial.accuser} accused"
    return f"{who} {trial.target} ({trial.kind} of step {trial.step}): {how}"


def line(event: Stepped, metrics: Mapping[str, float]) -> str:
    """How the run is doing after a step."""
    return printable(words.line(event, words.metrics_in_words(metrics)) + ("  under attack" if event.attacked else ""))
