"""Events as lines for a terminal. Names and reasons come from strangers: whatever leaves here is printable."""

from collections.abc import Iterator, Mapping

from troth.errors import printable
from troth.events import words
from troth.events.kinds import Began, Ended, Event, Noted, Stepped


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
            yield from (
                f"{words.when(event)}: {trial.accuser} accused {trial.target} ({trial.kind} of step {trial.step}): dismissed"
                for trial in event.trials
                if trial.banned is None
            )


def line(event: Stepped, metrics: Mapping[str, float]) -> str:
    """How the run is doing after a step."""
    return printable(words.line(event, words.metrics_in_words(metrics)) + ("  under attack" if event.attacked else ""))
