"""`troth key` and `troth new`: from nothing to a manifest that everybody can check."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Troth
from tests.cli.test_lists import TASK
from troth.cli import progress
from troth.crypto import Identity, KeyFileError
from troth.network.manifest.cost import StepCost
from troth.network.manifest.files import mismatches
from troth.network.manifest.manifest import Manifest, Resilience
from troth.protocol.broadcast.timeouts import Timeouts
from troth.training import make_task

NAMES = ("alice", "bob", "carol", "dave")
SMALL = ("--task", "quadratic:dimension=40")


@pytest.fixture
def founders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Four keys in the current folder, and how they are invited."""
    monkeypatch.chdir(tmp_path)
    given = []
    for number, name in enumerate(NAMES):
        Identity.generate().save(Path(f"{name}.key"))
        key = Identity.load(Path(f"{name}.key")).peer.hex()
        Path(f"{name}.pub").write_text(key + "\n")
        given += ["--founder", f"{name}={name}.pub@10.0.0.{number}:7001"]
    return given


class TestKey:
    def test_a_new_key_is_for_its_owner_only_and_its_public_half_for_all(self, troth: Troth) -> None:
        done = troth("key", "new", "me.key")
        assert (done.code, done.err) == (0, "")
        identity = Identity.load(Path("me.key"))
        assert Path("me.key").stat().st_mode & 0o777 == 0o600
        assert Path("me.pub").read_text() == identity.peer.hex() + "\n"
        assert f"public key  {identity.peer.hex()}\nshort name  {identity.peer.hex()[:16]}\n" in done.out
        assert f"--founder NAME={identity.peer.hex()}@HOST:PORT" in done.out
        assert "Wrote me.key (private: it never leaves this machine) and me.pub" in done.out

    def test_nothing_secret_is_printed(self, troth: Troth) -> None:
        out = troth("key", "new", "me.key").out + troth("key", "show", "me.key").out
        secret = "".join(Path("me.key").read_text().splitlines()[1:-1])
        assert secret not in out
        assert "PRIVATE" not in out

    def test_a_key_is_never_overwritten(self, troth: Troth) -> None:
        troth("key", "new", "me.key")
        before = Path("me.key").read_bytes()
        assert troth("key", "new", "me.key") == (
            2,
            "",
            "troth: me.pub exists already: choose another name for the key\n",
        )
        Path("me.pub").unlink()
        again = troth("key", "new", "me.key")
        assert (again.code, again.out) == (2, "")
        assert again.err == "troth: me.key exists already: move it away first, or choose another name\n"
        assert Path("me.key").read_bytes() == before
        assert not Path("me.pub").exists()

    def test_show_takes_either_half(self, troth: Troth) -> None:
        troth("key", "new", "me")
        assert Path("me.pub").exists(), "beside a key of any name"
        private, public = troth("key", "show", "me"), troth("key", "show", "me.pub")
        assert private == public
        assert private.code == 0
        assert Identity.load(Path("me")).peer.hex() in private.out

    def test_a_key_for_the_first_records_of_one_run(self, troth: Troth) -> None:
        troth("key", "new", "me.key")
        done = troth("key", "records", "me.key")
        assert (done.code, done.err) == (0, "")
        mine, records = Identity.load(Path("me.key")).peer.hex(), Identity.load(Path("me.records.key")).peer.hex()
        assert Path("me.pub").read_text() == f"{mine}+{records}\n"
        assert f"record key  {records}\n" in done.out
        assert troth("key", "show", "me.key") == troth("key", "show", "me.pub")
        again = troth("key", "records", "me.key")
        assert again == (
            2,
            "",
            "troth: me.records.key is there already, for a run that has not begun: use it, or remove it\n",
        )
        new = ("new", "run.toml", *SMALL, "--founder", "me=me.pub", "--founder", f"you={'ab' * 31}cd")
        assert troth(*new).code == 0
        assert [one.record_key is None for one in Manifest.load("run.toml").founders].count(False) == 1
        Path("me.records.key").unlink()
        assert "record key" not in troth("key", "show", "me.key").out

    def test_a_backup_is_the_same_key(self, troth: Troth) -> None:
        troth("key", "new", "me.key")
        done = troth("key", "backup", "me.key", "copy.key")
        assert (done.code, done.err) == (0, "")
        assert Identity.load(Path("copy.key")).peer == Identity.load(Path("me.key")).peer
        assert Path("copy.key").stat().st_mode & 0o777 == 0o600
        assert "read it back: the same key" in done.out
        assert "Never let both take part at once" in done.out

    def test_a_backup_overwrites_nothing(self, troth: Troth) -> None:
        troth("key", "new", "me.key")
        Path("copy.key").write_text("precious")
        done = troth("key", "backup", "me.key", "copy.key")
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("troth: copy.key exists already")
        assert Path("copy.key").read_text() == "precious"

    def test_a_backup_that_reads_back_as_another_key_is_refused(
        self, troth: Troth, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        troth("key", "new", "me.key")
        save = Identity.save
        monkeypatch.setattr(Identity, "save", lambda _self, path: save(Identity.generate(), path))
        done = troth("key", "backup", "me.key", "copy.key")
        assert done.code == 2
        assert "does not read back as the same key" in done.err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("show", "none.key"), "no key at none.key: make one with 'troth key new none.key'"),
            (("show", "open.key"), "open.key can be read by others (mode 644): run chmod 600 open.key"),
            (("show", "text"), "text holds no key: name the file that 'troth key new' wrote"),
            (("show", "broken.key"), "broken.key is not an unencrypted private key in PEM format"),
            (("show", "."), "cannot read .: Is a directory"),
            (("backup", "none.key", "copy"), "no key at none.key"),
            (("backup", "open.pub", "copy"), "open.pub is a public key: name the private one"),
            (("backup", "me.key", "none/copy"), "cannot write none/copy: No such file or directory"),
            (("new", "none/me.key"), "cannot write none/me.key: No such file or directory"),
            (("news",), "No such command 'news'."),
            (("show",), "Missing argument 'path'"),
        ],
        ids=" ".join,
    )
    def test_mistakes_end_in_one_line_and_exit_code_2(
        self, troth: Troth, arguments: tuple[str, ...], message: str
    ) -> None:
        troth("key", "new", "me.key")
        troth("key", "new", "open.key")
        Path("open.key").chmod(0o644)
        Path("text").write_text("nonsense")
        Path("broken.key").write_text("-----BEGIN PRIVATE KEY-----\nnonsense")
        Path("broken.key").chmod(0o600)
        done = troth("key", *arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.lower().startswith(f"troth: {message}".lower())
        assert done.err.count("\n") == 1

    def test_a_bad_key_file_is_an_operators_mistake_in_every_command(
        self, troth: Troth, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def load(_spec: str) -> None:
            raise KeyFileError("run chmod 600 me.key")

        monkeypatch.setattr("troth.training.make_task", load)
        assert troth("tasks", "--check", "digits") == (2, "", "troth: run chmod 600 me.key\n")

    def test_help_teaches(self, troth: Troth) -> None:
        for arguments in (("key",), ("key", "--help")):
            done = troth(*arguments)
            assert (done.code, done.err) == (0, "")
            assert all(f"\n  {command} " in done.out for command in ("new", "show", "backup"))
        for command in ("new", "show", "backup"):
            assert f"Example: troth key {command} me.key" in troth("key", command, "--help").out


class TestNew:
    def test_a_manifest_that_says_what_was_asked_for(self, troth: Troth, founders: list[str]) -> None:
        options = ("--steps", "12", "--rate", "0.25", "--optimizer", "adamw", "--seed", "3", "--name", "our bowl")
        times = ("--delta", "1.5", "--compute", "7", "--bulk", "8", "--stretch", "2.5")
        limits = ("--hardware-deviation", "1e-5", "--tau-auto", "0.4")
        done = troth("new", "run.toml", *SMALL, *founders, *options, *times, *limits)
        assert (done.code, done.err) == (0, "")
        manifest = Manifest.load(Path("run.toml"))
        assert {founder.name: founder.address for founder in manifest.founders} == {
            name: f"10.0.0.{number}:7001" for number, name in enumerate(NAMES)
        }
        assert {founder.key.hex() for founder in manifest.founders} == {
            Path(f"{name}.pub").read_text().strip() for name in NAMES
        }
        assert (manifest.name, manifest.steps, manifest.rate, manifest.optimizer, manifest.seed) == (
            "our bowl",
            12,
            0.25,
            "adamw",
            3,
        )
        assert manifest.timeouts == Timeouts(1.5, 7.0, 8.0, stretch=2.5)
        assert (manifest.parameters.byzantine, manifest.parameters.size) == (1, 40)
        assert (manifest.parameters.deviation, manifest.parameters.tau_auto) == (1e-5, 0.4)
        task = manifest.make_task()
        assert mismatches(manifest, task, manifest.problem(task)) == []

    def test_it_says_which_run_that_is_and_what_to_do_next(self, troth: Troth, founders: list[str]) -> None:
        done = troth("new", "run.toml", *SMALL, *founders)
        run = Manifest.load(Path("run.toml")).run.id.hex()
        assert f"Run {run[:8]}, in full {run}\n" in done.out
        assert "Wrote run.toml: quadratic:dimension=40, 40 parameters, 300 steps." in done.out
        summary = Resilience.of(Manifest.load(Path("run.toml")).run).sentences()
        assert len(summary) == 4
        assert "\n".join(summary) in done.out
        assert all(f"# {sentence}\n" in Path("run.toml").read_text() for sentence in summary)
        assert "troth join run.toml --identity me.key" in done.out
        assert "all members need machines of one class" in done.out
        assert "'troth doctor --task quadratic:dimension=40 --peers 4'" in done.out
        assert re.search(r"A gradient took \d+ ms here; members have 5 s for it\.", done.out)
        assert "\n".join(StepCost.of(Manifest.load(Path("run.toml"))).sentences()) in done.out

    def test_it_gives_a_sign_of_life(self, troth: Troth, founders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(progress, "_PATIENCE_S", 0.0)
        said = troth("new", "run.toml", *SMALL, *founders).err
        assert re.search(r"(reading keys|loading the task and its data) … \d s\n", said)

    def test_it_advises_against_optimizers_that_make_more_of_a_lie(self, troth: Troth, founders: list[str]) -> None:
        """[U7, D3] Other hardware leaves room for small lies in every step, and low floors for one that counts."""

        def said(*options: str) -> str:
            done = troth("new", "run.toml", "--overwrite", *SMALL, *founders, *options)
            assert done.code == 0, done.err
            return done.out

        several = ("--hardware-deviation", "1e-5")
        for optimizer, name in (("adamw", "AdamW"), ("lamb", "LAMB")):
            assert f"Other hardware and {name}: a liar may add" in said("--optimizer", optimizer, *several)
            assert "Other hardware" not in said("--optimizer", optimizer)
        assert "Other hardware" not in said("--optimizer", "sgd", *several)
        assert "Low floors: one liar" in said("--optimizer", "adamw:floor=0")
        assert "Low floors" not in said("--optimizer", "adamw")

    def test_defaults_are_the_tasks(self, troth: Troth, founders: list[str]) -> None:
        troth("new", "run.toml", *founders)
        manifest, task = Manifest.load(Path("run.toml")), make_task("digits")
        assert (manifest.task, manifest.name, manifest.steps) == ("digits", "digits", task.steps)
        assert (manifest.optimizer, manifest.rate, manifest.parameters.tau) == (task.optimizer, task.rate, task.tau)
        assert manifest.parameters.size == 4810
        assert manifest.data_where == "comes with the task"

    def test_no_secret_is_in_it(self, troth: Troth, founders: list[str]) -> None:
        troth("new", "run.toml", *SMALL, *founders)
        text = Path("run.toml").read_text()
        assert "PRIVATE" not in text
        for name in NAMES:
            assert Path(f"{name}.key").read_text().splitlines()[1] not in text

    def test_nothing_is_overwritten_unasked(self, troth: Troth, founders: list[str]) -> None:
        troth("new", "run.toml", *SMALL, *founders)
        first = Path("run.toml").read_text()
        done = troth("new", "run.toml", *SMALL, *founders)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("troth: run.toml exists already: choose another name, or --overwrite")
        assert Path("run.toml").read_text() == first
        assert troth("new", "run.toml", *SMALL, *founders, "--overwrite").code == 0
        assert Manifest.load(Path("run.toml")).nonce.hex() not in first

    def test_keys_in_hexadecimal_and_somebody_who_only_dials_out(self, troth: Troth, founders: list[str]) -> None:
        hexed = Path("alice.pub").read_text().strip()
        done = troth("new", "run.toml", *SMALL, "--founder", f"alice={hexed}", "--founder", "bob=bob.pub@[::1]:7001")
        assert done.code == 0
        assert {f.name: f.address for f in Manifest.load(Path("run.toml")).founders} == {
            "alice": "",
            "bob": "[::1]:7001",
        }
        assert "No liar is withstood: that takes 4 founders and a validator; here are 2 and 1." in done.out
        assert "cannot reach each other" not in done.out

    def test_two_who_only_dial_out_cannot_meet(self, troth: Troth, founders: list[str]) -> None:
        done = troth("new", "run.toml", *SMALL, "--founder", "alice=alice.pub", "--founder", "bob=bob.pub")
        assert "alice, bob have no address, so they cannot reach each other" in done.out

    @pytest.mark.long
    def test_a_task_of_ones_own_travels_with_it(self, troth: Troth, founders: list[str]) -> None:
        Path("ours").mkdir()
        Path("ours/mine.py").write_text(TASK)
        done = troth("new", "ours/run.toml", "--task", "ours/mine.py", *founders[:4])
        assert (done.code, done.err) == (0, "")
        assert (
            "send to everybody, to put into one folder (there is no secret in it):\n\n    run.toml\n    mine.py\n\n"
            in done.out
        )
        manifest = Manifest.load(Path("ours/run.toml"))
        assert manifest.task == "mine.py"
        task = manifest.make_task()
        assert mismatches(manifest, task, manifest.problem(task)) == []

    def test_everything_that_has_to_be_sent_is_listed(self, troth: Troth, founders: list[str]) -> None:
        Path("train.bin").write_bytes(bytes(7))
        reads = """
    def data_files(self):
        from pathlib import Path
        return [Path("train.bin")]
"""
        Path("mine.py").write_text(TASK + reads)
        done = troth("new", "run.toml", "--task", "mine.py", *founders[:4])
        assert "\n    run.toml\n    mine.py\n    train.bin (data, 7 bytes)\n\n" in done.out
        assert [name for name, _ in Manifest.load(Path("run.toml")).data_files] == ["train.bin"]
        where = ("--data-where", "https://example.org", "--overwrite")
        done = troth("new", "run.toml", "--task", "mine.py", *founders[:4], *where)
        assert "(the task's 1 data file: members get them from https://example.org)" in done.out

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--founder", "eve"), "--founder takes NAME=KEY@HOST:PORT, got 'eve'"),
            (("--founder", "eve=none.pub@h:1"), "--founder eve: 'none.pub' is neither a public key (64 hexadecimal"),
            (("--founder", "eve=alice.key@h:1"), "--founder eve: alice.key is a private key, which stays at home"),
            (("--founder", "eve=text@h:1"), "--founder eve: text holds no public key (64 hexadecimal digits)"),
            (("--founder", f"eve={'00' * 32}@h:1"), "the key of founder eve is no Ed25519 public key"),
            (("--founder", "eve=alice.pub@"), "--founder eve: no HOST:PORT after the @"),
            (("--founder", "eve=alice.pub@h"), "the address of founder eve must be host:port"),
            (("--founder", "eve=alice.pub@h:1"), "two founders have the key"),
            (("--founder", "e ve=alice.pub@h:1"), "a founder's name has 1 to 32 letters"),
            (("--byzantine", "2"), "2 liars among 4 peers with 1 validators: the guarantee needs 2b < n − m"),
            (("--byzantine", "-1"), "--byzantine and --validators must not be negative"),
            (
                ("--probation", "7"),
                "--probation must be at least 8 among 4 founders of whom 1 may lie, or 0 for founders only, got 7",
            ),
            (("--probation", "5", "--byzantine", "0"), "--probation must be at least 6 among 4 founders of whom 0"),
            (("--probation", "-1"), "--probation must be 0 to 65,536 steps"),
            (("--task", "digit"), "unknown task 'digit': did you mean digits"),
            (("--task", "../mine.py"), "no task file at '../mine.py'"),
            (("--task", "quadratic:dimension=3"), "4 founders are too many for a model of 3 parameters"),
            (("--optimizer", "adam"), "unknown optimizer 'adam': did you mean adamw"),
            (("--schedule", "cosin"), "unknown schedule 'cosin': did you mean cosine"),
            (("--rate", "nan"), "training.rate must be a positive number, got nan"),
            (("--steps", "0"), "training.steps must be from 1 to 1,000,000, got 0"),
            (("--delta", "0"), "timeouts.delta_s must be above 0"),
            (("--tau-auto", "0.6"), "--tau-auto must be above 0 and at most 0.5"),
            (("--hardware-deviation", "0.3"), "--hardware-deviation must be above 0 and below 0.2"),
            (("--device", "tpu"), "Invalid value for '--device'"),
            (("--data-where", "a\nb"), "data.where must be one line"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_mistakes_end_in_one_line_exit_code_2_and_no_file(
        self, troth: Troth, founders: list[str], arguments: tuple[str, ...], message: str
    ) -> None:
        Path("text").write_text("nonsense")
        done = troth("new", "run.toml", *SMALL, *founders, *arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"troth: {message}")
        assert done.err.count("\n") == 1
        assert not Path("run.toml").exists()

    @pytest.mark.parametrize("place", ["none/run.toml", "."])
    def test_a_place_where_nothing_can_be_written(self, troth: Troth, founders: list[str], place: str) -> None:
        done = troth("new", place, *SMALL, *founders)
        assert done.code == 2
        assert done.err.startswith(f"troth: cannot write {place}: name a file in a folder that exists")

    def test_a_disk_that_is_full(self, troth: Troth, founders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        def write(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("troth.api.new.write_text", write)
        done = troth("new", "run.toml", *SMALL, *founders)
        assert done == (2, "", "troth: cannot write run.toml: No space left on device; choose another place\n")

    def test_a_task_that_is_not_pure_is_refused(self, troth: Troth, founders: list[str]) -> None:
        Path("mine.py").write_text(TASK.replace("3 * x}", "3 * x + torch.rand(8, 1)}"))
        done = troth("new", "run.toml", "--task", "mine.py", *founders[:4])
        assert done.code == 2
        assert done.err.startswith("troth: batch() uses the global generator of torch")

    def test_founders_are_needed(self, troth: Troth) -> None:
        done = troth("new", "run.toml")
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("troth: Missing option '--founder'")

    def test_help_teaches(self, troth: Troth) -> None:
        done = troth("new", "--help")
        assert done.code == 0
        for words in (
            "troth key new me.key",
            "troth doctor --task TASK",
            "Example: troth new run.toml",
            "no secret",
            "6·n/(n − b)",
        ):
            assert words in " ".join(done.out.split())
