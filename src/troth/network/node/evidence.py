"""Evidence that a peer writes for people: of bans, and of equivocations in records that a restart discarded."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from troth.crypto import Digest, PeerId
from troth.events.kinds import Stepped, Trial
from troth.evidence.bans import Certified, History, ban_evidence, evidence_name, reason_for
from troth.evidence.companion_files import save_evidence
from troth.evidence.verify import UnprovedError, verify_ban
from troth.files import safe_name, write_text
from troth.protocol.core.records import StepRecord
from troth.protocol.core.run import Run
from troth.protocol.core.state import Outcome
from troth.protocol.history import sign_off
from troth.training.work import Training


class EvidenceFiles:
    """Follows the run step by step, and writes into the folder `evidence`."""

    def __init__(self, folder: Path, run: Run, name_of: Callable[[PeerId], str], note: Callable[[str], None]) -> None:
        self._folder = folder
        self._run = run
        self._name_of = name_of
        self._note = note
        self._history = History(run)

    def add(self, outcome: Outcome[Training]) -> None:
        """Take in a step, and write evidence of the bans whose record it certifies.

        A peer that came back may lack the records that lead to a ban; then others have the evidence.
        """
        for evidence in self._history.add(outcome):
            try:
                proof = verify_ban(evidence.text, self._run.id)
            except UnprovedError:
                continue
            self._folder.mkdir(exist_ok=True)
            save_evidence(self._folder / evidence.file_name(self._name_of(proof.banned)), evidence, proof.state)

    def unsigned(self, banned: PeerId) -> Path | None:
        """Write what this peer holds of a ban in the last step: all but the others' signatures under it, which it will not hear
        any more if it is the one that is banned. None if it does not know the ban."""
        seen = self._history.uncertified
        judgements = () if seen is None else seen.record.judgements
        judgement = next((one for one in judgements if one.banned == banned), None)
        if seen is None or judgement is None:
            return None
        evidence = ban_evidence(self._run, self._history, Certified(seen, sign_off(seen.record, {})), judgement)
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"unsigned-{evidence.file_name(self._name_of(banned))}"
        disputed = [last.seen.record for last in self._history.last if last.seen.record.step == judgement.step]
        save_evidence(path, evidence, Digest(disputed[0].state_before) if disputed else None)
        return path

    def discarded(self, record: StepRecord) -> None:
        """Tell of a record that was not certified.

        Everyone makes its audits again, so wrong work is found again. Two signed messages for one slot prove an
        equivocation to anyone: they are kept for people.
        """
        name, last = self._name_of, self._history.uncertified
        self._note(
            f"step {record.step} was not certified when this peer stopped: it is made again, or taken from the others"
        )
        for judgement in record.judgements:
            if judgement.banned is not None:
                self._note(f"it had banned {name(judgement.banned)}: {reason_for(judgement, name)}")
        equivocations = last.equivocations if last is not None and last.record == record else {}
        for peer, (slot, *envelopes) in equivocations.items():
            self._folder.mkdir(exist_ok=True)
            said = [[envelope.payload.hex(), envelope.signature.hex()] for envelope in envelopes]
            proof = {"run": slot.run.hex(), "slot": list(slot[1:]), "sender": peer.hex(), "said": said}
            path = self._folder / f"discarded-step{record.step}-{safe_name(name(peer))}.json"
            write_text(path, json.dumps(proof, indent=1) + "\n")


# A ban, told to the peer that is banned: it may be honest, and its memory or its versions at fault.


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
