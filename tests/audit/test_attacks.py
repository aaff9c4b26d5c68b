"""The holder of a folder rewrites what is not signed; members lie together. Each attack is found, and where [E5]."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.audit.conftest import SCENARIO, Audit
from tests.audit.folders import witnessed
from tests.audit.forger import Forger, with_payload
from troth.audit import journal
from troth.audit.folder import AuditOptions, audit
from troth.audit.report import AuditReport, Check
from troth.crypto import Digest
from troth.evidence.recompute import Gradients
from troth.network.disk import audit_records, checkpoints
from troth.network.manifest.manifest import Manifest
from troth.protocol.history import next_digest
from troth.protocol.wire.frames import RestartCertificate
from troth.protocol.wire.messages import Phase
from troth.training.work import Training, TrainingWork

BAN = 9  # step of the ban


def first(report: AuditReport, check: Check) -> str:
    """The first finding of this kind, in words."""
    found = [one for one in report.findings if one.check is check]
    assert found, report.lines()
    return found[0].line()


# The chain, and what it does not find


def test_a_forger_that_changes_nothing_is_not_found(forger: Forger, audited: Audit) -> None:
    forger.write()
    assert audited().right


def test_a_changed_line_breaks_the_chain_and_is_named(peer: Path, audited: Audit) -> None:
    (path,) = (peer / "journal").glob("steps-*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[20] = lines[20].replace(b'"slot": [', b'"slot": [1')
    path.write_bytes(b"".join(lines))
    assert f"{path}, line 21: the chain is broken here" in first(audited(), Check.LINES)


def test_a_dropped_line_breaks_the_chain(peer: Path, audited: Audit) -> None:
    (path,) = (peer / "journal").glob("steps-*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:10] + lines[11:]))
    assert f"{path}, line 11: the chain" in first(audited(), Check.LINES)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"kind": "record", "record": "00", "record": "00"}', "not written the one way"),
        (b'{"kind":"record", "record": "00"}', "not written the one way"),
        (b'{"kind": "record", "more": 1, "record": "00"}', "unknown field"),
        (b'{"kind": "other"}', "Invalid value"),
        (b'{"kind": "record", "record": "AA"}', "lower case"),
        (b'{"kind": "announced", "said": {}, "slot": [0, 0, 9, 0]}', "nothing is announced in REJOIN"),
        (b'{"kind": "announced", "said": {}, "slot": [900, 0, 1, 0]}', "later file"),
        (b'{"kind": "announced", "said": {}, "slot": [-1, 0, 1, 0]}', "Expected"),
        (b'{"kind": "announced", "said": %s, "slot": [0, 0, 1, 0]}' % (b"[" * 5000 + b"]" * 5000), "not a line"),
        (b'{"kind": %s}' % (b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "not a line"),
    ],
)
def test_lines_that_no_peer_writes_are_refused(forger: Forger, audited: Audit, text: bytes, why: str) -> None:
    """Deep nesting, other spellings, other kinds: in a chain that holds."""
    forger.write()
    last = bytes.fromhex(json.loads(forger.path.read_text().splitlines()[-1])["chain"])
    chain = next_digest(Digest(last), text)
    with forger.path.open("ab") as file:
        file.write(b'{"chain": "%s", "what": %s}\n' % (chain.hex().encode(), text))
    said = first(audited(), Check.LINES)
    assert f"line {len(forger.lines) + 1}" in said
    assert why in said


def test_a_line_without_an_end_is_bounded(forger: Forger, audited: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("troth.audit.journal.MOST_LINE", 1 << 16)
    with forger.path.open("ab") as file:
        file.write(b'{"chain": "' + b"0" * (1 << 18))
    assert "no end, or is too long" in first(audited(), Check.LINES)


def test_a_torn_last_line_is_a_power_cut(forger: Forger, audited: Audit) -> None:
    with forger.path.open("ab") as file:
        file.write(b'{"chain": "00')
    report = audited()
    assert report.right
    assert any("torn" in one.why for one in report.unchecked)


# Announcements


def test_an_envelope_that_was_left_out_shows_in_the_record(forger: Forger, audited: Audit) -> None:
    (commit,) = forger.announced(4, Phase.COMMIT)
    del commit["said"][min(commit["said"])]
    forger.write()
    said = first(audited(), Check.STEPS)
    assert "step 4 " in said
    assert "takes no part in Clip" in said, "it was not in Commit"


def test_a_changed_payload_shows_in_its_signature(forger: Forger, audited: Audit) -> None:
    (reveal,) = forger.announced(5, Phase.REVEAL)
    sender = min(reveal["said"])
    with_payload(reveal, sender, lambda payload: payload[:-1] + bytes([payload[-1] ^ 1]))
    forger.write()
    said = first(audited(), Check.SIGNATURES)
    assert sender in said
    assert f"line {forger.lines.index(reveal) + 1}" in said


@pytest.mark.long
def test_a_second_process_finds_a_wrong_signature_too(
    forger: Forger, audited: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_BATCH", 64)
    monkeypatch.setattr(journal, "_WORTH_WHILE", 1)
    assert audited(AuditOptions(sample=0, processes=1)).right
    (report,) = forger.announced(9, Phase.REPORT)
    sender = max(report["said"])
    with_payload(report, sender, lambda payload: payload[:-1] + bytes([payload[-1] ^ 1]))
    forger.write()
    said = first(audited(AuditOptions(sample=0, processes=1)), Check.SIGNATURES)
    assert sender in said
    assert f"line {forger.lines.index(report) + 1}" in said


def test_an_envelope_counts_in_its_own_slot_only(forger: Forger, audited: Audit) -> None:
    """[M1] A message of step 3, shown as one of step 4."""
    (old,), (new,) = forger.announced(3, Phase.ACCUSE), forger.announced(4, Phase.ACCUSE)
    sender = min(new["said"])
    new["said"][sender] = old["said"][sender]
    forger.write()
    assert sender in first(audited(), Check.SIGNATURES)


def test_a_step_that_is_left_out_is_named_and_rests_on_signatures(forger: Forger, audited: Audit) -> None:
    """Nobody can tell it from a peer that was away: it is said, and is no finding."""
    for line in [*forger.announced(4), *forger.announced(5)]:
        forger.lines.remove(line)
    forger.write()
    report = audited()
    assert report.right, report.lines()
    assert report.retraced == 9
    assert any(one.what == "draws and verdicts of steps 4 to 5" for one in report.unchecked)


def test_announcements_in_another_order_are_found(forger: Forger, audited: Audit) -> None:
    one, other = (forger.lines.index(forger.announced(4, phase)[0]) for phase in (Phase.REVEAL, Phase.REPORT))
    forger.lines[one], forger.lines[other] = forger.lines[other], forger.lines[one]
    forger.write()
    assert "stands behind a later one" in first(audited(), Check.LINES)


@pytest.mark.long
def test_lines_of_another_run_with_the_same_founders_do_not_fit(forger: Forger, audited: Audit, tmp_path: Path) -> None:
    """[M1] All signed bytes contain the run."""
    other = tmp_path / "other"
    witnessed(other / "peer", replace(SCENARIO, steps=9))  # another manifest, the same keys
    stranger = Forger(other / "peer", Manifest.load(other / "run.toml"), SCENARIO.seed)
    (mine,), (theirs,) = forger.announced(2, Phase.COMMIT), stranger.announced(2, Phase.COMMIT)
    mine["said"] = theirs["said"]
    forger.write()
    assert "does not fit" in first(audited(), Check.SIGNATURES)


def test_an_announcement_that_has_no_place_is_found(forger: Forger, audited: Audit) -> None:
    (accuse,) = forger.announced(4, Phase.ACCUSE)
    (vote,) = forger.announced(BAN, Phase.VOTE)
    forger.lines.insert(forger.lines.index(accuse) + 1, {**vote, "slot": [4, 0, int(Phase.VOTE), 0]})
    forger.write()
    report = audited()
    assert "Vote, attempt 0, has no place in the step" in first(report, Check.STEPS)
    assert "does not fit" in first(report, Check.SIGNATURES)


# Records


def test_a_record_that_is_left_out_is_found(forger: Forger, audited: Audit) -> None:
    forger.drop_record(4)
    forger.write()
    said = first(audited(), Check.RECORDS)
    assert "the record of step 5: its step does not continue" in said


def test_a_ban_that_is_dropped_with_its_record_is_found(forger: Forger, audited: Audit) -> None:
    """The next record names its members."""
    forger.drop_record(BAN)
    forger.write()
    assert not audited().right


def test_records_in_another_order_are_found(forger: Forger, audited: Audit) -> None:
    one, other = forger.at(4), forger.at(5)
    lines = forger.lines
    lines[one : one + 2], lines[other : other + 2] = lines[other : other + 2], lines[one : one + 2]
    forger.write()
    assert "does not continue" in first(audited(), Check.RECORDS)


def test_fewer_signatures_than_a_quorum_certify_nothing(forger: Forger, audited: Audit) -> None:
    """[U2, G1]"""
    signed = forger.lines[forger.at(4) + 1]["signatures"]
    for peer in sorted(signed)[:3]:
        del signed[peer]
    forger.write()
    assert "fewer than 4 of its 6 members signed it" in first(audited(), Check.RECORDS)


def test_a_wrong_signature_among_enough_is_found(forger: Forger, audited: Audit) -> None:
    signed = forger.lines[forger.at(4) + 1]["signatures"]
    one, other = sorted(signed)[:2]
    signed[one] = signed[other]
    forger.write()
    assert f"the signature of {one} does not fit" in first(audited(), Check.RECORDS)


def test_signatures_of_another_record_are_found(forger: Forger, audited: Audit) -> None:
    forger.lines[forger.at(4) + 1] = forger.lines[forger.at(5) + 1]
    forger.write()
    assert "do not stand under their record" in first(audited(), Check.RECORDS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("randomness", bytes(32)),
        ("spread", 0.5),
        ("length", 2.0),
        ("absent", (b"",)),
        ("struck", (b"",)),
        ("unaudited", (b"",)),
    ],
)
def test_a_lying_quorum_cannot_make_up_a_draw_or_a_number(
    forger: Forger, audited: Audit, field: str, value: object
) -> None:
    """[R1, T4, U3] All members sign a record that does not follow from what they announced."""
    record = forger.record(4)
    if isinstance(value, tuple):
        value = (record.members[0],)
    forger.sign(4, msgspec.structs.replace(record, **{field: value}))
    forger.write()
    said = first(audited(), Check.STEPS)
    assert "step 4 " in said
    assert f"in: {field}" in said


def test_a_lying_quorum_cannot_take_back_a_ban(forger: Forger, audited: Audit) -> None:
    """[T4] The votes are in the journal."""
    forger.sign(BAN, msgspec.structs.replace(forger.record(BAN), judgements=()))
    forger.write()
    said = first(audited(), Check.STEPS)
    assert f"step {BAN} " in said
    assert "judgements" in said


def test_a_lying_quorum_cannot_close_early_or_late(forger: Forger, audited: Audit) -> None:
    """[U4]"""
    closing = msgspec.structs.replace(forger.record(4), closing=True, content=True)
    forger.sign(4, closing)
    forger.write()
    assert "the run closes after 10 updates" in first(audited(), Check.RECORDS)


def test_a_state_that_is_named_in_another_way_is_found(forger: Forger, audited: Audit) -> None:
    """[U5]"""
    forger.sign(4, msgspec.structs.replace(forger.record(4), content=False))
    forger.write()
    assert "does not name the state after it" in first(audited(), Check.RECORDS)


def test_a_step_that_was_made_again_counts_in_its_later_incarnation(forger: Forger, audited: Audit) -> None:
    """[B5] Two certified records of one step: the later incarnation counts, and the missing certificate is named."""
    forger.cut_after(8)
    again = msgspec.structs.replace(forger.record(8), incarnation=1, began=True)
    forger.lines += [{}, {}]
    at = forger.at(8)
    forger.lines[-2:] = [dict(line) for line in forger.lines[at : at + 2]]
    old = forger.lines[at : at + 2]
    forger.sign(8, again)
    forger.lines[-2:], forger.lines[at : at + 2] = forger.lines[at : at + 2], old
    forger.write()
    report = audited()
    assert any("made again in incarnation 1" in remark for remark in report.remarks), report.lines()
    assert any("restart certificate" in one.why for one in report.unchecked)


def test_an_earlier_incarnation_does_not_come_back(forger: Forger, audited: Audit) -> None:
    """[B2] The old record behind the new one."""
    at = forger.at(8)
    old = [dict(line) for line in forger.lines[at : at + 2]]
    forger.sign(8, msgspec.structs.replace(forger.record(8), incarnation=1, began=True))
    forger.lines[at + 2 : at + 2] = old
    forger.write()
    assert "does not continue" in first(audited(), Check.RECORDS)


# Cuts


def remove(peer: Path, *names: str) -> None:
    for name in names:
        for path in peer.glob(name):
            path.unlink()


def test_a_journal_that_is_cut_at_a_step_is_found_by_whatever_is_newer(
    forger: Forger, peer: Path, audited: Audit
) -> None:
    """Checkpoints, the certificate, changes of members and evidence each know more. Without them it is an older copy, and the
    report says that the run is not closed."""
    forger.cut_after(7)
    forger.write(marks=False)
    assert any("journal ends before this checkpoint" in one.what for one in audited().findings)
    remove(peer, "checkpoints/*")
    report = audited()
    assert "not the journal's last" in first(report, Check.MODEL)
    remove(peer, "model.*")
    assert f"members changed in step {BAN}" in first(audited(), Check.FILES)
    remove(peer, "journal/roster-changes.jsonl")
    assert "the journal was cut" in first(audited(), Check.BANS)
    remove(peer, "evidence/*")
    report = audited()
    assert report.right
    assert not report.closed
    assert "not closed: more steps may have followed" in report.lines()[0]


def test_a_journal_whose_beginning_was_removed_is_found(forger: Forger, audited: Audit) -> None:
    """A peer deletes files only when it has more than twenty."""
    lines = forger.path.read_text().splitlines(keepends=True)
    begin = json.loads(lines[0])["what"]
    chain = Digest(bytes.fromhex(json.loads(lines[30])["chain"]))
    content = json.dumps({**begin, "after": chain.hex()}, sort_keys=True).encode()
    rest = [content, *(json.dumps(json.loads(line)["what"], sort_keys=True).encode() for line in lines[31:])]
    with forger.path.open("wb") as file:
        for line in rest:
            chain = next_digest(chain, line)
            file.write(b'{"chain": "%s", "what": %s}\n' % (chain.hex().encode(), line))
    forger.mark(chain)
    assert "files before this one are missing" in first(audited(), Check.LINES)


# Other files


def test_checkpoints_follow_from_the_records(forger: Forger, peer: Path, audited: Audit) -> None:
    """[U2] With a check digest that fits."""
    path = sorted((peer / "checkpoints").glob("*.json"))[0]
    saved = checkpoints.read_exactly(path.read_bytes())
    forger.rewrite(path, replace(saved, roster=replace(saved.roster, strikes=((3, saved.roster.members[0]),))))
    assert "the records lead to another state, in: roster" in first(audited(), Check.FILES)
    forger.rewrite(path, replace(saved, step=saved.step + 1))
    assert "whatever its name says" in first(audited(), Check.FILES)


def test_another_model_in_a_checkpoint_is_found(peer: Path, audited: Audit) -> None:
    one, other = sorted((peer / "checkpoints").glob("*.safetensors"))[:2]
    shutil.copy(one, other)
    assert f"{other}: it holds another state than" in first(audited(), Check.CONTENTS)


def test_audit_records_follow_from_the_announcements(peer: Path, audited: Audit) -> None:
    """[K1]"""
    path = sorted((peer / "checkpoints").glob("*.audit"))[0]
    saved = audit_records.read_exactly(path.read_bytes())
    path.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(saved, projection_key=bytes(32)).checked()))
    assert "in: projection key" in first(audited(), Check.FILES)
    path.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(saved, state=bytes(32)).checked()))
    assert "another content of the state" in first(audited(), Check.FILES)
    assert saved.aggregate is not None
    wrong = bytes([saved.aggregate[0] ^ 1]) + saved.aggregate[1:]
    path.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(saved, aggregate=wrong).checked()))
    assert "another aggregate" in first(audited(), Check.FILES)


def test_changes_of_members_are_those_of_the_journal(peer: Path, audited: Audit) -> None:
    path = peer / "journal" / "roster-changes.jsonl"
    text = path.read_text()
    path.write_text("")
    assert "lacks a change" in first(audited(), Check.FILES)
    path.unlink()
    assert "it is not there, and members changed" in first(audited(), Check.FILES)
    path.write_text(text.replace(": ", ":", 1))
    assert "line 1: the line is damaged, or was changed" in first(audited(), Check.FILES)


def test_a_ban_without_evidence_is_named(peer: Path, audited: Audit) -> None:
    """[E1] It is no finding: a peer that came back may lack it. The votes in the journal were checked."""
    remove(peer, "evidence/ban-*")
    report = audited()
    assert report.right
    (named,) = [one for one in report.unchecked if f"in step {BAN}" in one.what]
    assert "peer2" in named.what
    assert "the votes in the journal were counted" in named.why


def test_evidence_of_another_run_proves_nothing_here(peer: Path, audited: Audit, tmp_path: Path) -> None:
    other = tmp_path / "other"
    witnessed(other / "peer", replace(SCENARIO, steps=9))
    (theirs,) = (other / "peer" / "evidence").glob("ban-*.json")
    shutil.copy(theirs, peer / "evidence" / "ban-step1-peer0.json")
    assert "not about run" in first(audited(), Check.BANS)


@pytest.mark.long
def test_another_model_beside_the_certificate_is_found(peer: Path, audited: Audit, tmp_path: Path) -> None:
    """[E4]"""
    other = tmp_path / "other"
    witnessed(other / "peer", replace(SCENARIO, steps=9))
    mine = (peer / "model.safetensors").read_bytes()
    shutil.copy(other / "peer" / "model.safetensors", peer / "model.safetensors")
    assert "other weights" in first(audited(), Check.MODEL)
    (peer / "model.safetensors").write_bytes(mine)
    shutil.copy(other / "peer" / "model.json", peer / "model.json")
    assert "not the journal's last" in first(audited(), Check.MODEL)
    remove(peer, "model.safetensors")


def test_signed_slots_and_the_runs_mark_are_read_strictly(peer: Path, audited: Audit) -> None:
    """[B1]"""
    slots = peer / "signed-slots"
    lines = slots.read_text().splitlines(keepends=True)
    slots.write_text("".join(reversed(lines)))
    assert "signed-slots" in first(audited(), Check.FILES)
    slots.write_text("".join(lines[:-2]))
    assert "signed slots end before" in first(audited(), Check.FILES)
    slots.write_text("".join(lines))
    (peer / "run").write_text((peer / "run").read_text().upper())
    assert "does not name this run" in first(audited(), Check.FILES)


def test_files_that_are_none_are_refused(peer: Path, audited: Audit) -> None:
    """A pipe would block for ever."""
    path = sorted((peer / "checkpoints").glob("*.json"))[0]
    path.unlink()
    os.mkfifo(path)
    assert "no ordinary file" in first(audited(), Check.FILES)


def test_a_restart_certificate_is_checked(peer: Path, audited: Audit) -> None:
    """[B5]"""
    (peer / "signed-slots.begun").write_bytes(msgspec.msgpack.encode(RestartCertificate(8, bytes(32), 1, {})))
    assert "no restart certificate" in first(audited(), Check.FILES)


# The sample


@pytest.mark.long
def test_a_wrong_gradient_that_nobody_found_is_found(tmp_path: Path) -> None:
    """[D1] A liar that was lucky in step 0, whose state the manifest gives; what is looked at, nobody chose."""
    for seed in range(20):
        lucky = replace(SCENARIO, attack_start=0, attack_stop=1, seed=seed)
        folder = tmp_path / str(seed)
        manifest = witnessed(folder / "peer", lucky)
        if not list((folder / "peer").glob("evidence/ban-*")):
            break
    report = audit(folder / "peer", manifest, AuditOptions(sample=1000))
    said = first(report, Check.GRADIENTS)
    assert "step 0, peer" in said
    assert "it was never banned" in said


def test_a_machine_that_computes_other_bits_says_so(
    peer: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D3] That is no finding."""
    computed = TrainingWork.gradient_now
    monkeypatch.setattr(TrainingWork, "gradient_now", lambda *given: computed(*given) * (1 + 2**-20))
    report = audit(peer, manifest, AuditOptions(sample=4))
    assert report.right, report.lines()
    assert report.counts[Check.GRADIENTS] == 0
    assert any("computes other bits" in one.why for one in report.unchecked)


def test_a_few_that_come_out_do_not_make_all_others_guilty(
    peer: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[E6] Liars can compute as the reader's machine does, and not as the run's: something is wrong, but not with whom."""
    banned = "".join(path.read_text() for path in (peer / "evidence").glob("ban-*.json")).split('"banned": "')[1][:64]
    one, *_ = (founder.key for founder in manifest.founders if founder.key.hex() != banned)
    computed = Gradients.root
    monkeypatch.setattr(Gradients, "root", lambda self, who: computed(self, who) if who == one else bytes(32))
    report = audit(peer, manifest, AuditOptions(sample=20))
    said = [one.what for one in report.findings if one.check is Check.GRADIENTS]
    assert said
    assert all("these or it are wrong" in what for what in said)


def test_an_update_that_does_not_follow_is_found(
    peer: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[U1] As if the members had applied another rate than the manifest's."""
    updated = TrainingWork.update
    monkeypatch.setattr(
        TrainingWork, "update", lambda self, training, update_D, step: updated(self, training, 2 * update_D, step)
    )
    assert "does not lead to the state" in first(audit(peer, manifest, AuditOptions(sample=4)), Check.UPDATES)


def test_a_step_that_was_shortened_otherwise_is_found(
    peer: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[E5, U7] The record's factor takes the model to know: as if the members had signed another one than it gives."""
    monkeypatch.setattr(TrainingWork, "shortened", lambda *_: 0.5)
    assert "shortened otherwise" in first(audit(peer, manifest, AuditOptions(sample=4)), Check.UPDATES)


def test_another_first_model_is_found(peer: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the run had begun from another model than the manifest's."""
    made = TrainingWork.first

    def other(self: TrainingWork, seed: bytes | int) -> Training:
        first = made(self, seed)
        return replace(first, parameters_D=first.parameters_D + 1)

    monkeypatch.setattr(TrainingWork, "first", other)
    said = first(audit(peer, manifest, AuditOptions(sample=8)), Check.CONTENTS)
    assert "the run began from another model" in said
