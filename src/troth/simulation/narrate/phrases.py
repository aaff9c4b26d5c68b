"""Phrases for what is in a world: peers by their numbers, messages and judgements in short."""

from collections.abc import Iterable, Iterator

from troth.crypto import Identity, PeerId, Slot, derive
from troth.protocol.core.records import Judgement, Returned, StepRecord
from troth.protocol.wire.messages import Accuse, Clip, Commit, Kind, Malformed, Message, Phase, Verdict, Vote
from troth.protocol.wire.phases import decode
from troth.simulation.chaos.plan import Plan

# Names that peers' keys are derived from: the first, and a successor's after a lost journal.
_KEYS = ("identity", "incarnation", "again")
_VERDICTS = {Verdict.ACCUSED: "guilty", Verdict.ACCUSER: "not guilty", Verdict.WITHHELD: "nothing to judge by"}
_NOT_PEOPLE = ("members", "contributors", "roots")  # fields of a record that are told otherwise, or hold no peers


class Phrases:
    """Phrases of one world, whose plan says which key is whose."""

    def __init__(self, plan: Plan) -> None:
        self.numbers = {
            Identity.from_secret(derive(plan.seed, name, number)).peer: number
            for name in _KEYS
            for number in (*range(plan.peers), *plan.strangers)
        }

    def number(self, peer: bytes) -> str:
        """The peer's number, or the start of a made-up key."""
        number = self.numbers.get(PeerId(peer))
        return f"{peer.hex()[:6]}…" if number is None else str(number)

    def several(self, peers: Iterable[bytes]) -> str:
        return " ".join(sorted(map(self.number, set(peers)), key=by_number))

    def message(self, said: Message | Malformed) -> str:
        match said:
            case Malformed(reason=reason):
                return f"no message: {reason}"
            case Commit(root=None):
                return "no gradient"
            case Clip(missing=missing) if missing:
                return f"misses parts of {self.several(missing)}"
            case Accuse(accusations=accusations) if accusations:
                charges = [f"{self.number(a.target)} of {charge(a.kind, a.step, a.part)}" for a in accusations]
                return f"accuses {', '.join(charges)}"
            case Vote(ballots=ballots):
                return ", ".join(
                    f"{self.number(b.target)} {_VERDICTS[b.verdict]} of {charge(b.kind, b.step, b.part)}"
                    for b in ballots
                )
            case _:
                return ""

    def record(self, record: StepRecord) -> Iterator[str]:
        moved = "the model moved" if record.updated else "no update"
        yield f"{len(record.contributors)} of {len(record.members)} contributed, {moved}"
        yield from dict.fromkeys(map(self.judgement, record.judgements))
        for name in record.__struct_fields__:
            value = getattr(record, name)
            people = isinstance(value, tuple) and name not in _NOT_PEOPLE
            texts = [self._person(one) for one in value] if people else []
            if any(texts):
                yield f"{name}: {' '.join(sorted(texts, key=by_number))}"

    def _person(self, one: object) -> str:
        """A peer, a link dispute between two, or a peer that came back."""
        match one:
            case bytes():
                return self.number(one)
            case (bytes(first), bytes(second)):
                return "–".join(sorted((self.number(first), self.number(second)), key=by_number))
            case Returned(member=member, key=key):
                return self.number(key) + ("" if key == member else " (under a new key)")
            case _:
                return ""

    def judgement(self, judgement: Judgement) -> str:
        target, what = self.number(judgement.target), charge(judgement.kind, judgement.step, judgement.part)
        accuser = None if judgement.accuser is None else self.number(judgement.accuser)
        match judgement.verdict:
            case Verdict.ACCUSED:
                return f"{target} is banned for {what}" + ("" if accuser is None else f", accused by {accuser}")
            case Verdict.ACCUSER if accuser is not None:
                return f"{accuser} is banned: it accused {target} of {what}"
            case Verdict.WITHHELD:
                return f"{target} is out: it laid nothing open about {what}"
            case _:
                return f"{target} stays: no majority about {what}"


def decoded(slot: Slot, payload: bytes) -> Message | Malformed:
    try:
        return decode(Phase(slot.phase), payload)
    except (KeyError, ValueError):  # nothing is announced in such a phase
        return Malformed("for no phase that has announcements")


def phase(slot: Slot) -> str:
    return Phase(slot.phase).name.lower() if slot.phase in set(Phase) else f"phase {slot.phase}"


def where(slot: Slot) -> str:
    return f"step {slot.step} attempt {slot.attempt} {phase(slot)}"


def charge(kind: Kind, step: int, part: int | None) -> str:
    about = f"step {step}" + ("" if part is None else f", part {part}")
    return f"{kind.name.lower().replace('_', ' ')} ({about})"


def spaced(numbers: Iterable[int]) -> str:
    return " ".join(map(str, sorted(numbers)))


def by_number(text: str) -> tuple[int, str]:
    """Sort key: 2 before 10."""
    return len(text), text
