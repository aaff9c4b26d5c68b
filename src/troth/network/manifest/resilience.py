"""What a run withstands, in plain words: liars, absences, and when it pauses. All numbers are asked of the protocol's roster."""

from dataclasses import dataclass, replace

from troth.crypto import PeerId
from troth.protocol.core.roster import Away, Roster, moves_with
from troth.protocol.core.run import Run


@dataclass(frozen=True)
class Resilience:
    """Numbers of founders."""

    founders: int
    liars: int  # that the run withstands
    gone: int  # with so many gone, one after another, it still trains
    at_once: int  # so many may vanish within one step, and it goes on
    begins: int  # enough to begin, or to go on after it stopped
    agreed: int  # enough for that if people agree on it

    @classmethod
    def of(cls, run: Run) -> "Resilience":
        roster, validators = Roster.founding(run), run.parameters.validators
        count = len(roster.members)
        return cls(
            founders=count,
            liars=roster.liars,
            gone=_most_gone(roster, validators),
            at_once=count - roster.quorum,
            begins=max(roster.quorum, roster.restart_quorum),
            agreed=roster.quorum,
        )

    def sentences(self) -> list[str]:
        """One sentence for each thing that people may want to know before they begin."""
        if self.founders == 1:
            return ["1 founder: it trains alone, so nobody can lie to it, and nobody checks it."]
        return [self._liars(), self._absences(), *self._vanishing(), self._beginning()]

    def _liars(self) -> str:
        return f"{self.founders} founders: withstands {_count(self.liars, 'liar') if self.liars else 'no liar'}."

    def _absences(self) -> str:
        pauses = f"with {self.gone + 1} gone it pauses until one is back, and steps and schedule wait"
        if self.gone == 0:
            return f"Trains while all are there; {pauses}."
        slowly = ", if they leave one after another" if self.gone > self.at_once else ""
        return f"Goes on training while at most {self.gone} {'is' if self.gone == 1 else 'are'} gone{slowly}; {pauses}."

    def _vanishing(self) -> list[str]:
        """Too many at once: those who are left cannot agree on anything."""
        if self.at_once == 0:
            return []
        fewer = (
            f" (or {self.agreed}, if you agree on it: troth join --restart-with)" if self.agreed < self.begins else ""
        )
        return [f"If {self.at_once + 1} or more vanish within one step, it stops until {self.begins} are there{fewer}."]

    def _beginning(self) -> str:
        if self.begins == self.founders:
            return "To begin, all have to be there."
        return f"It begins when all are there; {self.begins} are enough after a while (troth join --founding-s)."


def _most_gone(roster: Roster, validators: int) -> int:
    """Let one member after another fall out, as long as the rest can agree on it and still trains."""
    gone = 0
    while True:
        rest = roster.members[1:]
        if len(rest) < roster.quorum or not moves_with(roster, len(rest), validators):
            return gone
        left = Away(gone, PeerId(roster.members[0]))
        roster, gone = replace(roster, members=rest, away=(*roster.away, left)), gone + 1


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
