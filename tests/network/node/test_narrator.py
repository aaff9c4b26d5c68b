"""Lines for people: news at once, the state of the run now and then, a pause loudly and once a minute; and the log of it all."""

from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from tests.network.manifest.plans import KEYS, PLAN
from tests.network.node.test_metrics import EVENT
from troth.crypto import Identity, PeerId
from troth.events import phrases
from troth.events.kinds import Ban, Returned
from troth.network.node.founding import PeerNames
from troth.network.node.log import FILES, LogFile
from troth.network.node.telling import Narrator

QUIET = replace(EVENT, banned=(), metrics={})
PAUSED = replace(QUIET, members=2, ever=4, needed=3, moved=False, away=("carol", "dave"))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_pause_says_why_who_and_what_to_do() -> None:
    assert phrases.pause(PAUSED) == (
        "paused: 2 of 4 are gone (carol, dave), and with up to 1 liar among them 3 are needed to train; nothing is lost, steps "
        "and schedule wait. They come back with the same command as before; if they never will, begin a new run from this "
        "model with those who are left: troth new --from FOLDER"
    )
    lost = phrases.pause(replace(PAUSED, members=1, ever=4, away=("carol",)))
    assert lost is not None
    assert "Too many can never come back: begin a new run" in lost
    assert phrases.pause(QUIET) is None
    undecided = phrases.pause(replace(QUIET, moved=False, unjudged=True, needed=3))
    assert undecided is not None
    assert "no quorum judged" in undecided
    back = phrases.pause(replace(QUIET, moved=False, needed=3))
    assert back is not None
    assert "enough are back" in back


def test_a_pause_is_told_at_once_and_then_every_minute_and_its_end_once() -> None:
    clock, said = Clock(), list[str]()
    narrator = Narrator(said.append, every_s=0.0, clock=clock)
    for second in range(150):
        clock.now = float(second)
        narrator.stepped(PAUSED)
        narrator.note(phrases.pause(PAUSED) or "")  # as a peer that rests does
    assert said == [phrases.pause(PAUSED)] * 3
    narrator.stepped(QUIET)
    narrator.stepped(QUIET)
    assert said[3:] == ["step 6: the model moves again", phrases.line(QUIET, ""), phrases.line(QUIET, "")]


def test_before_the_first_step_there_is_a_sign_of_life_every_ten_seconds() -> None:
    """For two minutes: a peer may wait for its friends for days."""
    clock, said = Clock(), list[str]()
    narrator = Narrator(said.append, lively=True, clock=clock)
    for second in range(0, 301, 5):
        clock.now = float(second)
        narrator.note("waits for bob")
    assert len(said) == 12 + 3
    early = Narrator(said.append, lively=True, clock=clock)
    early.stepped(QUIET)
    said.clear()
    for second in range(301, 360, 5):
        clock.now = float(second)
        early.note("waits for bob")
    assert said == ["waits for bob"]


def test_the_time_left_is_told_once_the_pace_is_known() -> None:
    said = list[str]()
    narrator = Narrator(said.append, every_s=0.0)
    for step in range(12):
        late = 60.0 if step > 3 else 0.0
        narrator.stepped(replace(QUIET, step=step, updates=step + 1, of=1012, at=1e9 + 0.5 * step + late))
    assert "left" not in said[0]
    assert said[11].endswith("0.50 s a step  Δ 3.2 s  about 8 min left")
    assert phrases.time_left(41.0) == "  about 41 s left"
    assert phrases.time_left(7200.0) == "  about 2 h left"
    assert phrases.time_left(None) == phrases.time_left(0.0) == ""


def test_two_members_that_do_not_hear_each_other_are_named_to_all() -> None:
    """[F2] By the word of one of them, which may be a liar's."""
    assert phrases.sentences(replace(QUIET, link_disputes=(("alice", "bob"),))) == [
        "step 6: alice and bob do not hear each other, as one of them says: the others pass on what they say. If both are well, "
        "one of them should open its port to the other"
    ]


def test_the_state_of_the_run_now_and_then_and_news_always() -> None:
    clock, said = Clock(), list[str]()
    narrator = Narrator(said.append, every_s=2.0, traffic=True, clock=clock)
    for step in range(1, 8):
        clock.now = 0.5 * step
        narrator.stepped(
            replace(QUIET, step=step - 1, updates=step, banned=(Ban(peer="eve", reason="lies"),) if step == 4 else ())
        )
    assert [line.split("  ")[0] for line in said] == ["step 1/9", "step 3: eve is banned: lies", "step 5/9"]
    assert said[-1].endswith("0.0 MB in, 0.0 MB out")
    narrator.stepped(replace(QUIET, step=9, updates=9))
    assert said[-1].startswith("step 9/9"), "the last one in any case"
    narrator.stepped(replace(QUIET, step=10, updates=9, closing=True))
    assert said[-1] == "step 10 (update 9): the last step is audited, and the run is closed"


def test_a_note_is_not_repeated_within_a_minute() -> None:
    clock, said = Clock(), list[str]()
    narrator = Narrator(said.append, clock=clock)
    for second in range(0, 130, 3):
        clock.now = float(second)
        narrator.note("waits for carol")
    narrator.note("carol is here")
    assert said == ["waits for carol"] * 3 + ["carol is here"]


def test_losses_have_names_of_their_own() -> None:
    line = phrases.line(EVENT, phrases.metrics_in_words({"loss": 0.25, "accuracy": 0.875}))
    assert "batch loss 1.250  test loss 0.25  accuracy 87.5%  peers 4" in line


def test_a_run_whose_liars_are_all_found_does_not_sound_like_an_alarm() -> None:
    line = phrases.line(replace(EVENT, withstands=0), "")
    assert line.count("no liars expected") == 1
    assert "withstands" not in line


def test_a_returned_peer_keeps_its_name_under_every_key() -> None:
    names = PeerNames(PLAN.name_of)
    second, third = (Identity.from_secret(bytes([k]) * 32).peer for k in (1, 2))
    assert names(second) == second.hex()[:16]
    names.learn([(KEYS[2], second), (second, third)])
    assert [names(PeerId(key)) for key in (KEYS[2], second, third)] == ["carol"] * 3
    late = replace(QUIET, step=216, updates=76, returned=(Returned(peer="carol"),))
    assert phrases.sentences(late) == ["step 216 (update 76): carol is back"], (
        "as evidence counts, and as the line counts"
    )
    back = (Returned(peer="carol", key="01020304"), Returned(peer="dave"))
    assert phrases.sentences(replace(QUIET, returned=back)) == [
        "step 6: carol is back (new key 01020304)",
        "step 6: dave is back",
    ]


def test_the_log_has_every_step_with_its_time_and_no_raw_values(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    log = LogFile(path, clock=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    narrator = Narrator(log.write, every_s=0.0)
    narrator.note("listening\non 1.2.3.4")
    for step in (6, 7):
        narrator.stepped(replace(EVENT, step=step, updates=step + 1))
    lines = path.read_text().splitlines()
    assert lines[0] == "2026-01-02T03:04:05Z listening?on 1.2.3.4", "a peer's text cannot forge a line"
    assert [line.split(" ", 1)[1].split("  ")[0] for line in lines[1:]] == [
        "step 6: mallory is banned: a wrong gradient",
        "step 7/9",
        "step 7: mallory is banned: a wrong gradient",
        "step 8/9",
    ]
    assert "Stepped" not in path.read_text()


def test_the_log_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log.txt", most_bytes=1000)
    for number in range(200):
        log.write(f"line {number}")
    files = [tmp_path / "log.txt", tmp_path / "log.txt.1", tmp_path / "log.txt.2"]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert len(files) == FILES
    assert all(file.stat().st_size <= 1000 for file in files)
    kept = [int(line.rsplit(" ", 1)[1]) for file in reversed(files) for line in file.read_text().splitlines()]
    assert kept == list(range(200 - len(kept), 200)), "without a gap, up to the last"


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "log.txt").mkdir()
    LogFile(tmp_path / "log.txt").write("lost")
