"""Opening an exhibit: every message in it is signed for its slot, and all of them are about the same work (SPEC E2).

An owner, a reporter and an accuser sign themselves what they speak about: Clip the roots and the radius, Report the aggregates,
the projections and the radius, Accuse the reports. So nobody's word is needed for that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from troth.crypto import Digest, PeerId, Slot
from troth.evidence.file_format import Exhibit, SignedMessage, UnprovedError, expect, open_signed
from troth.protocol.core.records import (
    Judgement,
    StepRecord,
    aggregate_message,
    aggregates_basis,
    reports_basis,
    roots_basis,
)
from troth.protocol.core.run import Run
from troth.protocol.history import digest_of, key_of
from troth.protocol.wire.messages import (
    Accuse,
    Announced,
    ChargeKind,
    Clip,
    Commit,
    GuiltySide,
    Malformed,
    Phase,
    Report,
    ReportNumbers,
    said_as,
)
from troth.protocol.wire.primitives import Primitives

NOBODY: frozenset[PeerId] = frozenset()


@dataclass(frozen=True)
class OpenedExhibit:
    """Signed statements about the disputed work, checked and decoded."""

    step: StepRecord  # of the disputed step
    roots: Mapping[PeerId, Digest]  # commitments of the contributors in question
    reports: Mapping[PeerId, ReportNumbers]
    # Part and reporter of each report that the owner in question called wrong; None: the owner was not heard.
    named: frozenset[tuple[int, PeerId]] | None
    projection_key: Digest | None
    aggregates: tuple[Digest, ...]  # of all parts
    proven_parts: Mapping[PeerId, tuple[Digest, tuple[Digest, ...]]]  # of the disputed part: blob and path
    hardware: Mapping[PeerId, bytes | None]  # classes that the contributors in question named, in a run of several


def wrong_reporters(record: StepRecord, step: int) -> frozenset[PeerId]:
    """Members whose report of that step this record calls wrong: an owner that covered let one of these pass."""
    wrong = (ChargeKind.AUDITED_REPORT, step, GuiltySide.ACCUSED)
    return frozenset(PeerId(j.target) for j in record.judgements if (j.kind, j.step, j.verdict) == wrong)


def open_exhibit(
    run: Run, exhibit: Exhibit, judgement: Judgement, step: StepRecord, reporters: frozenset[PeerId], tools: Primitives
) -> OpenedExhibit:
    """Raise `UnprovedError` unless it holds just the messages that this judgement needs, all signed and about the same work.
    `step` is the record of the disputed step, `reporters` are those of it who were convicted together with the accused."""
    least, most = run.parameters.tau_least, run.parameters.tau_most
    expect(least <= step.tau <= most, "the disputed step has a clipping radius that the run cannot have")  # [A6]
    messages = _Messages.open(run, exhibit, step, tools)
    proven_parts = {
        key_of(proven.sender): (digest_of(proven.digest), tuple(map(digest_of, proven.path)))
        for proven in exhibit.parts
    }
    _expect_needed_messages(judgement, step, exhibit, messages, frozenset(proven_parts), reporters)
    roots = {peer: _root(commit) for peer, commit in messages.commits.items()}
    hardware = {peer: said_as(commit, Commit).hardware for peer, commit in messages.commits.items()}
    if judgement.kind != ChargeKind.AGGREGATE:  # an aggregate's owner signed the roots that it was made from
        recorded = step.commitments
        expect(all(recorded.get(peer) == root for peer, root in roots.items()), "the record says other gradients")
    if judgement.kind == ChargeKind.GRADIENT:
        opened = OpenedExhibit(step, roots, {}, None, None, (), {}, hardware)
    else:
        key, aggregates = digest_of(exhibit.projection_key), tuple(map(digest_of, exhibit.aggregates))
        _expect_same_work(judgement, step, messages, roots, (key, aggregates))
        numbers = {peer: _numbers(report, step, run) for peer, report in messages.reports.items()}
        opened = OpenedExhibit(step, roots, numbers, messages.named(), key, aggregates, proven_parts, hardware)
    # Else a rightly banned member could show another message, signed for the same slot, that is right.
    expect(messages.judged(judgement) == judgement.message, "another message was judged")
    return opened


@dataclass(frozen=True)
class _Messages:
    """The messages of an exhibit, each signed for its slot."""

    commits: Mapping[PeerId, Announced]
    clips: Mapping[PeerId, Announced]
    reports: Mapping[PeerId, Announced]
    accuses: Mapping[PeerId, Announced]
    tools: Primitives

    @classmethod
    def open(cls, run: Run, exhibit: Exhibit, step: StepRecord, tools: Primitives) -> "_Messages":
        def of(
            phase: Phase, messages: Sequence[SignedMessage], attempt: int = exhibit.attempt
        ) -> dict[PeerId, Announced]:
            slot = Slot(run.id, step.step, phase, attempt, step.incarnation)
            found = {announced.sender: announced for announced in (open_signed(one, slot, tools) for one in messages)}
            expect(len(found) == len(messages), f"the exhibit holds two {phase.name.lower()} messages of one peer")
            return found

        return cls(
            of(Phase.COMMIT, exhibit.commits, 0),  # gradients are committed to once
            of(Phase.CLIP, exhibit.clips),
            of(Phase.REPORT, exhibit.reports),
            of(Phase.ACCUSE, exhibit.accuses),
            tools,
        )

    @property
    def accuse(self) -> Accuse | None:
        """The owner's Accuse, if it is among them: nobody else's is."""
        return next((said_as(announced, Accuse) for announced in self.accuses.values()), None)

    def judged(self, judgement: Judgement) -> Digest:
        """Digest of the message that the accused is judged by: the votes name it."""
        accused = PeerId(judgement.target)
        match judgement.kind:
            case ChargeKind.GRADIENT:
                return self._digest(self.commits[accused])
            case ChargeKind.COVER:
                return self._digest(self.accuses[accused])
            case ChargeKind.AGGREGATE:
                heard = self._digest(self.accuses[accused]) if accused in self.accuses else None
                return aggregate_message(self._digest(self.clips[accused]), heard)
            case _:
                return self._digest(self.reports[accused])

    def named(self) -> frozenset[tuple[int, PeerId]] | None:
        """Reports that the owner accused. An accusation counts only if it names the report that was sent (SPEC T1)."""
        if self.accuse is None:
            return None
        sent = self._reports()
        said = ((a.part, PeerId(a.target), a.message) for a in self.accuse.accusations if a.kind == ChargeKind.REPORT)
        return frozenset((part, peer) for part, peer, report in said if part is not None and sent.get(peer) == report)

    def reports_basis(self) -> Digest:
        return reports_basis(self._reports())

    def _reports(self) -> dict[PeerId, Digest]:
        return {peer: self._digest(report) for peer, report in self.reports.items()}

    def _digest(self, announced: Announced) -> Digest:
        return self.tools.digest(announced.envelope.payload)


def _expect_needed_messages(
    judgement: Judgement,
    step: StepRecord,
    exhibit: Exhibit,
    messages: _Messages,
    proven: frozenset[PeerId],
    reporters: frozenset[PeerId],
) -> None:
    """Check that it holds the messages that a judgement of this kind needs, and no others."""
    commits, clips, reports = frozenset(messages.commits), frozenset(messages.clips), frozenset(messages.reports)
    accuses, accused = frozenset(messages.accuses), frozenset({PeerId(judgement.target)})
    senders = (commits, clips, reports, accuses, proven)
    part = judgement.part is not None and judgement.part < step.parts
    same = exhibit.attempt == judgement.attempt
    match judgement.kind:
        case ChargeKind.GRADIENT:
            more = exhibit.projection_key or exhibit.aggregates or exhibit.attempt
            right = senders == (accused, NOBODY, NOBODY, NOBODY, NOBODY) and not more
        case ChargeKind.AUDITED_REPORT:
            right = senders == (accused, NOBODY, accused, NOBODY, NOBODY) and judgement.part is None
        case ChargeKind.REPORT:
            right = senders == (accused, NOBODY, accused, NOBODY, accused) and part and same
        case ChargeKind.AGGREGATE:
            right = bool(commits) and commits == reports == proven and clips == accused and accuses <= accused
            right &= part and same
        case ChargeKind.COVER:
            everyone = frozenset(map(PeerId, step.contributors))
            # Of all wrong reporters: an owner could otherwise show the right report of somebody else.
            right = NOBODY < commits == reporters <= reports == everyone and clips == accuses == accused and not proven
            right &= part
        case _:
            right = False
    expect(right, "the exhibit does not hold what this ban can be recomputed from")


def _expect_same_work(
    judgement: Judgement,
    step: StepRecord,
    messages: _Messages,
    roots: Mapping[PeerId, Digest],
    about: tuple[Digest, tuple[Digest, ...]],
) -> None:
    """Check that the messages speak about these projections and aggregates, and about these gradients and reports."""
    key, aggregates = about
    expect(len(aggregates) == step.parts, "the exhibit does not name the aggregate of every part")
    basis = aggregates_basis(aggregates, key, step.tau)
    right = all(said_as(report, Report).basis == basis for report in messages.reports.values())
    expect(right, "a report is about other aggregates")
    for clip in (said_as(announced, Clip) for announced in messages.clips.values()):
        own = [center.digest for center in clip.centers if center.part == judgement.part]
        expect(own == [aggregates[judgement.part or 0]], "the owner did not announce this aggregate")
        made = judgement.kind == ChargeKind.COVER or clip.basis == roots_basis(roots, step.tau)
        expect(made, "the aggregate was made from other gradients")
    if messages.accuse is not None:
        expect(messages.accuse.basis == messages.reports_basis(), "the owner had other reports")


def _root(commit: Announced) -> Digest:
    root = said_as(commit, Commit).root
    expect(root is not None, "somebody committed to nothing")
    assert root is not None
    return Digest(root)


def _numbers(report: Announced, step: StepRecord, run: Run) -> ReportNumbers:
    numbers = ReportNumbers.unpack(said_as(report, Report).numbers, step.parts, run.parameters.projections)
    if isinstance(numbers, Malformed):
        raise UnprovedError(f"a report: {numbers.reason}")
    return numbers
