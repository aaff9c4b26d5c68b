"""Opening an exhibit: every message in it is signed for its place, and they are about one and the same work (SPEC E2).

What an owner, a reporter or an accuser said is tied to what it was said about by what it signed itself: Clip to the roots and the
radius, Report to the aggregates, the projections and the radius, Accuse to the reports. So nobody's word is needed for that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from troth.crypto import Digest, PeerId, Slot
from troth.evidence.checking import UnprovedError, digest_of, expect, key_of, opened
from troth.evidence.form import Exhibit, SignedMessage
from troth.protocol.core.records import (
    Judgement,
    StepRecord,
    aggregate_message,
    aggregates_basis,
    reports_basis,
    roots_basis,
)
from troth.protocol.core.run import Run
from troth.protocol.wire.messages import (
    Accuse,
    Announced,
    Clip,
    Commit,
    Kind,
    Malformed,
    Phase,
    Report,
    ReportNumbers,
    Verdict,
    said_as,
)
from troth.protocol.wire.primitives import Primitives


@dataclass(frozen=True)
class Testimony:
    """What was signed in the disputed step."""

    step: StepRecord  # its record
    roots: Mapping[PeerId, Digest]  # what the contributors in question committed to
    reports: Mapping[PeerId, ReportNumbers]
    named: (
        frozenset[tuple[int, PeerId]] | None
    )  # parts, and whose reports the owner in question called wrong; None: not heard
    projection_key: Digest | None
    aggregates: tuple[Digest, ...]  # of all parts
    parcels: Mapping[PeerId, tuple[Digest, tuple[Digest, ...]]]  # of the disputed part: blob and path


def wrong_reporters(record: StepRecord, step: int) -> frozenset[PeerId]:
    """Whose reports of that step this record calls wrong: an owner that covered let one of these pass."""
    wrong = (Kind.AUDITED_REPORT, step, Verdict.ACCUSED)
    return frozenset(PeerId(j.target) for j in record.judgements if (j.kind, j.step, j.verdict) == wrong)


def testify(
    run: Run, exhibit: Exhibit, judgement: Judgement, step: StepRecord, reporters: frozenset[PeerId], tools: Primitives
) -> Testimony:
    """Raises `UnprovedError` unless it holds just what this judgement needs, all signed and about the same. `step` is the record
    of the disputed step, `reporters` are those of it who were convicted together with the accused."""
    said = _Said.open(run, exhibit, step, tools)
    parcels = {
        key_of(proven.sender): (digest_of(proven.digest), tuple(map(digest_of, proven.path)))
        for proven in exhibit.parcels
    }
    _expect_what_it_needs(judgement, step, exhibit, said, frozenset(parcels), reporters)
    roots = {peer: _root(commit) for peer, commit in said.commits.items()}
    if judgement.kind != Kind.AGGREGATE:  # whose owner signed what it was made from
        recorded = dict(zip(step.contributors, step.roots, strict=True))
        expect(all(recorded.get(peer) == root for peer, root in roots.items()), "the record says other gradients")
    if judgement.kind == Kind.GRADIENT:
        testimony = Testimony(step, roots, {}, None, None, (), {})
    else:
        key, aggregates = digest_of(exhibit.projection_key), tuple(map(digest_of, exhibit.aggregates))
        _expect_one_work(judgement, step, said, roots, (key, aggregates))
        numbers = {peer: _numbers(report, step, run) for peer, report in said.reports.items()}
        testimony = Testimony(step, roots, numbers, said.named(), key, aggregates, parcels)
    # Else whoever was rightly banned could show another message, signed for the same place, that is right.
    expect(said.judged(judgement) == judgement.message, "another message was judged")
    return testimony


@dataclass(frozen=True)
class _Said:
    """The messages of an exhibit, each signed for its place."""

    commits: Mapping[PeerId, Announced]
    clips: Mapping[PeerId, Announced]
    reports: Mapping[PeerId, Announced]
    accuses: Mapping[PeerId, Announced]
    tools: Primitives

    @classmethod
    def open(cls, run: Run, exhibit: Exhibit, step: StepRecord, tools: Primitives) -> "_Said":
        def of(
            phase: Phase, messages: Sequence[SignedMessage], attempt: int = exhibit.attempt
        ) -> dict[PeerId, Announced]:
            slot = Slot(run.id, step.step, phase, attempt, step.incarnation)
            found = {announced.sender: announced for announced in (opened(one, slot, tools) for one in messages)}
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
        """The owner's, if it is among them: nobody else's is."""
        return next((said_as(said, Accuse) for said in self.accuses.values()), None)

    def judged(self, judgement: Judgement) -> Digest:
        """What the votes name: the digest of what the accused is judged by."""
        accused = PeerId(judgement.target)
        match judgement.kind:
            case Kind.GRADIENT:
                return self._digest(self.commits[accused])
            case Kind.COVER:
                return self._digest(self.accuses[accused])
            case Kind.AGGREGATE:
                heard = self._digest(self.accuses[accused]) if accused in self.accuses else None
                return aggregate_message(self._digest(self.clips[accused]), heard)
            case _:
                return self._digest(self.reports[accused])

    def named(self) -> frozenset[tuple[int, PeerId]] | None:
        """An accusation counts only if it names the report that was sent (SPEC T1)."""
        if self.accuse is None:
            return None
        sent = self._reports()
        said = ((a.part, PeerId(a.target), a.message) for a in self.accuse.accusations if a.kind == Kind.REPORT)
        return frozenset((part, peer) for part, peer, report in said if part is not None and sent.get(peer) == report)

    def reports_basis(self) -> Digest:
        return reports_basis(self._reports())

    def _reports(self) -> dict[PeerId, Digest]:
        return {peer: self._digest(report) for peer, report in self.reports.items()}

    def _digest(self, said: Announced) -> Digest:
        return self.tools.digest(said.envelope.payload)


def _expect_what_it_needs(
    judgement: Judgement,
    step: StepRecord,
    exhibit: Exhibit,
    said: _Said,
    parcels: frozenset[PeerId],
    reporters: frozenset[PeerId],
) -> None:
    """Whose messages a judgement of this kind needs, and no others."""
    commits, clips, reports = frozenset(said.commits), frozenset(said.clips), frozenset(said.reports)
    accuses, accused = frozenset(said.accuses), frozenset({PeerId(judgement.target)})
    none: frozenset[PeerId] = frozenset()
    part = judgement.part is not None and judgement.part < step.parts
    same = exhibit.attempt == judgement.attempt
    match judgement.kind:
        case Kind.GRADIENT:
            more = exhibit.projection_key or exhibit.aggregates or exhibit.attempt
            right = (commits, clips, reports, accuses, parcels) == (accused, none, none, none, none) and not more
        case Kind.AUDITED_REPORT:
            right = (commits, clips, reports, accuses, parcels) == (accused, none, accused, none, none)
            right &= judgement.part is None
        case Kind.REPORT:
            right = (commits, clips, reports, accuses, parcels) == (accused, none, accused, none, accused)
            right &= part and same
        case Kind.AGGREGATE:
            right = bool(commits) and commits == reports == parcels and clips == accused and accuses <= accused
            right &= part and same
        case Kind.COVER:
            everyone = frozenset(map(PeerId, step.contributors))
            right = none < commits == reporters <= reports == everyone and clips == accuses == accused and not parcels
            right &= part  # of all those reporters: of another's right report nothing follows
        case _:
            right = False
    expect(right, "the exhibit does not hold what this ban can be recomputed from")


def _expect_one_work(
    judgement: Judgement,
    step: StepRecord,
    said: _Said,
    roots: Mapping[PeerId, Digest],
    about: tuple[Digest, tuple[Digest, ...]],
) -> None:
    """What was said is about these projections and aggregates, and about these gradients and reports."""
    key, aggregates = about
    expect(len(aggregates) == step.parts, "the exhibit does not name the aggregate of every part")
    basis = aggregates_basis(aggregates, key, step.tau)
    right = all(said_as(report, Report).basis == basis for report in said.reports.values())
    expect(right, "a report is about other aggregates")
    for clip in (said_as(announced, Clip) for announced in said.clips.values()):
        own = [center.digest for center in clip.centers if center.part == judgement.part]
        expect(own == [aggregates[judgement.part or 0]], "the owner did not announce this aggregate")
        made = judgement.kind == Kind.COVER or clip.basis == roots_basis(roots, step.tau)
        expect(made, "the aggregate was made from other gradients")
    if said.accuse is not None:
        expect(said.accuse.basis == said.reports_basis(), "the owner had other reports")


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
