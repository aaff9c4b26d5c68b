"""Plug-ins: users' own files and installed packages, what they may be, and what a wrong one is told."""

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troth.errors import OperatorError
from troth.plugins import absolute, blamed, in_its_folder, name_of
from troth.specs import file_of, parse_file_spec, parse_spec
from troth.training import TASKS, make_task
from troth.training.determinism import files_read
from troth.training.tasks.small_images import Digits
from troth.workshop.attacks import ATTACKS, GradientAttack, make_attack
from troth.workshop.attacks.gradient_lies import SignFlip
from troth.workshop.rules.memory import RuleEntry
from troth.workshop.simulation.scenario import make_rule

ATTACK = """
from dataclasses import dataclass
from troth.attacks import GradientAttack

@dataclass(frozen=True)
class Loud(GradientAttack):
    '''shout'''
    scale: float = 3.0
    name: str = "x"
    steps: int | None = None

    def forge(self, own_BD, honest_HD):
        return own_BD * self.scale
"""
TWO = ATTACK + "\n\nclass Quiet(Loud):\n    pass\n"
RULE = "def middle(vectors_PD):\n    return vectors_PD.median(dim=0).values\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write a file into an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


Write = Callable[..., Path]


class TestSpecs:
    @pytest.mark.parametrize(
        ("spec", "file", "name", "options"),
        [
            ("my.py", "my.py", "", {}),
            ("my.py:Loud", "my.py", "Loud", {}),
            ("my.py:a=1,b=2", "my.py", "", {"a": "1", "b": "2"}),
            ("my.py:Loud:a=1", "my.py", "Loud", {"a": "1"}),
            ("my.py:", "my.py", "", {}),
            ("my.py:Loud:a=x:y", "my.py", "Loud", {"a": "x:y"}),
            ("my.py:a=x:y", "my.py", "", {"a": "x:y"}),
            ("my.py:a=other.py", "my.py", "", {"a": "other.py"}),
            ("/a folder/with:colons/my.py:Loud", "/a folder/with:colons/my.py", "Loud", {}),
            ("./sign-flip.py", "./sign-flip.py", "", {}),
            (" my.py : Loud ", "my.py", "Loud", {}),
        ],
    )
    def test_files(self, spec: str, file: str, name: str, options: dict[str, str]) -> None:
        assert file_of(spec) == file
        assert parse_file_spec(spec) == (file, name, options)

    @pytest.mark.parametrize("spec", ["digits", "digits:hidden=3", "mine:source=other.py", "my.pyc", "py", "my.PY", ""])
    def test_names(self, spec: str) -> None:
        assert file_of(spec) is None

    @pytest.mark.long
    @given(
        st.lists(
            st.sampled_from(["digits", ".py", "evil.py", ":", "=", "x=", ",", "/", "..", " ", "Name", "-", "\n", "é"]),
            max_size=9,
        ).map("".join)
    )
    def test_whoever_asks_for_the_name_and_whoever_runs_the_file_agree(self, spec: str) -> None:
        """A stranger's description may name a task of ours, never a file: both questions must have one answer."""
        try:
            name, _ = parse_spec(spec)
        except OperatorError:
            return
        assert name == file_of(spec) if file_of(spec) is not None else not name.endswith(".py")
        assert name not in TASKS or file_of(spec) is None

    def test_for_another_folder(self, write: Write) -> None:
        path = write(ATTACK, "below/mine.py")
        assert absolute("below/mine.py:Loud:scale=2") == f"{path}:Loud:scale=2"
        assert absolute(f"{path}:Loud") == f"{path}:Loud"
        assert absolute("sign-flip:scale=2") == "sign-flip:scale=2"
        assert in_its_folder("below/mine.py:Loud") == (path.parent, "mine.py:Loud")
        assert in_its_folder("digits:hidden=2") == (Path(), "digits:hidden=2")


class TestFiles:
    def test_the_only_one_needs_no_name(self, write: Write) -> None:
        write(ATTACK)
        assert vars(make_attack("mine.py")) == {"scale": 3.0, "name": "x", "steps": None}

    def test_options(self, write: Write) -> None:
        write(TWO)
        made = make_attack("mine.py:Quiet:scale=7,name=y,steps=4")
        assert (type(made).__name__, vars(made)) == ("Quiet", {"scale": 7.0, "name": "y", "steps": 4})
        assert vars(make_attack("mine.py:Loud:steps=none"))["steps"] is None

    @pytest.mark.parametrize(
        "place", ["a folder/mine.py", "with:colons/mine.py", "./mine.py", "sign-flip.py", "täglich.py"]
    )
    def test_any_path(self, write: Write, place: str) -> None:
        write(ATTACK, place)
        assert type(make_attack(f"{place}:scale=2")).__name__ == "Loud"

    def test_a_file_never_hides_a_name_of_ours(self, write: Write) -> None:
        write(ATTACK, "sign-flip.py")
        write(ATTACK, "sign-flip")
        assert make_attack("sign-flip") == SignFlip()

    def test_is_run_once_for_one_content_and_again_for_another(self, write: Write) -> None:
        write("import sys\nsys.runs = getattr(sys, 'runs', 0) + 1\n" + ATTACK)
        try:
            first, second = make_attack("mine.py:scale=1"), make_attack("mine.py:scale=2")
            assert type(first) is type(second)
            assert sys.runs == 1  # type: ignore[attr-defined]
            write("import sys\nsys.runs += 1\n" + ATTACK.replace("3.0", "4.0"))
            assert vars(make_attack("mine.py"))["scale"] == 4.0
            assert sys.runs == 2  # type: ignore[attr-defined]
        finally:
            del sys.runs  # type: ignore[attr-defined]

    def test_every_task_out_of_a_file_has_read_what_the_file_read(self, write: Write) -> None:
        """The file is run once; files that it reads must be declared by every task out of it all the same."""
        write("some data", "data.txt")
        write(
            "open('data.txt').close()\nfrom troth.training.tasks.small_images import Digits\nclass Mine(Digits): pass\n"
        )
        for spec in ("mine.py", "mine.py:hidden=3"):
            assert list(files_read(make_task(spec))) == [str(Path("data.txt").resolve())]

    def test_two_files_of_one_name_are_two(self, write: Write) -> None:
        write(ATTACK, "a/mine.py")
        write(ATTACK, "b/mine.py")
        assert type(make_attack("a/mine.py")) is not type(make_attack("b/mine.py"))

    def test_its_class_can_be_pickled(self, write: Write) -> None:
        write(ATTACK)
        made = make_attack("mine.py")
        assert pickle.loads(pickle.dumps(made)) == made

    def test_an_object_will_do(self, write: Write) -> None:
        write("from troth.training.tasks.small_images import Digits\nsmall = Digits(hidden=2)\n")
        assert make_task("mine.py") == make_task("mine.py:small") == Digits(hidden=2)
        with pytest.raises(OperatorError, match="names an object, which has its options already"):
            make_task("mine.py:small:hidden=3")

    def test_an_imported_class_will_do_if_it_is_named(self, write: Write) -> None:
        write("from troth.attacks import SignFlip\n")
        assert make_attack("mine.py:SignFlip:scale=2") == SignFlip(2.0)
        with pytest.raises(OperatorError, match="defines 0 attacks"):
            make_attack("mine.py")

    def test_a_helper_beside_it_is_found_also_later(self, write: Write) -> None:
        write("FACTOR = 5.0\n", "helper_of_mine.py")
        write("LATER = 6.0\n", "later_helper_of_mine.py")
        late = "\n    def late(self):\n        import later_helper_of_mine\n        return later_helper_of_mine.LATER\n"
        write("from helper_of_mine import FACTOR\n" + ATTACK.replace("3.0", "FACTOR") + late)
        made: Any = make_attack("mine.py")
        assert (made.scale, made.late()) == (5.0, 6.0)

    def test_nothing_beside_it_hides_a_module(self, write: Write) -> None:
        for module in ("random", "colorsys"):  # the one is imported already, the other is not
            sys.modules.pop("colorsys", None)
            write("raise RuntimeError('mine')\n", f"{module}.py")
        write("import random, colorsys\n" + ATTACK)
        assert type(make_attack("mine.py")).__name__ == "Loud"

    def test_what_it_prints_is_not_our_output(self, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
        write("print('hello')\n" + ATTACK)
        make_attack("mine.py")
        assert capsys.readouterr() == ("", "hello\n")


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("import no_such_module", "line 1: ModuleNotFoundError: No module named 'no_such_module'; install it here"),
            ("x = 1\nfrom os import nothing", "line 2: ImportError: cannot import name 'nothing' from 'os'"),
            ("x = 1\n\ndef f(:", "line 3: SyntaxError: invalid syntax"),
            ("if True:\nx = 1", "line 2: IndentationError: expected an indented block"),
            ("x = 1\n1 / 0", "line 2: ZeroDivisionError: division by zero"),
            ("def f():\n    raise KeyError('a\\nb')\nf()", "line 2: KeyError: 'a"),
            ("raise Exception", "line 1: Exception"),
            ("import sys\nsys.exit('done')", "line 2: SystemExit: done"),
            ("raise RuntimeError('\\x1b[2J')", r"line 1: RuntimeError: \?\[2J"),
            ("\0", ""),
        ],
    )
    def test_a_file_that_cannot_be_run(self, write: Write, text: str, message: str) -> None:
        write(text)
        before, modules = list(sys.path), set(sys.modules)
        for make in (make_attack, make_task, make_rule):
            with pytest.raises(OperatorError, match=rf"^cannot use 'mine\.py'.*{message}") as caught:
                make("mine.py")
            assert "\n" not in str(caught.value)
            assert "\x1b" not in str(caught.value)
        assert sys.path == before
        assert not [name for name in set(sys.modules) - modules if "mine" in name]

    def test_a_helper_is_named_where_it_is_wrong(self, write: Write) -> None:
        write("x = 1\n1 / 0", "wrong_helper.py")
        write("import wrong_helper")
        with pytest.raises(OperatorError, match=r"^cannot use '.*/wrong_helper\.py', line 2: ZeroDivisionError"):
            make_attack("mine.py")

    def test_not_in_utf_8(self, write: Write) -> None:
        write("").write_bytes(b"x = '\xff'\n")
        with pytest.raises(OperatorError, match=r"^cannot use 'mine\.py'.*SyntaxError"):
            make_attack("mine.py")

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("mine.py", r"'mine\.py' defines 2 attacks, Loud and Quiet: say which, as in mine\.py:Loud"),
            ("mine.py:Laud", r"'mine\.py' has no attack 'Laud': did you mean Loud\?"),
            ("mine.py:zzz", r"'mine\.py' has no attack 'zzz': it has Loud and Quiet"),
            ("mine.py:dataclass", r"'dataclass' in 'mine\.py' is not a subclass of troth\.attacks\.GradientAttack"),
            ("mine.py:GradientAttack", r"'GradientAttack' in 'mine\.py' is not a subclass of"),
            ("mine.py:Loud:scale", "'scale' in 'mine.py:Loud:scale' is not an option: write name:option=value"),
            ("mine.py:Loud:scale=x", "option 'scale' takes a finite number, got 'x'"),
            (
                "mine.py:Loud:scal=1",
                r"'.*' has no option 'scal' \(its options: scale, name, steps\); did you mean scale\?",
            ),
            ("mine.py:Loud:steps=many", "option 'steps' takes a whole number or none, got 'many'"),
            ("mine.py:Loud,Quiet", r"'mine\.py' has no attack 'Loud,Quiet': did you mean"),
            ("nowhere.py", r"no attack file at 'nowhere\.py'"),
            ("folder.py", r"no attack file at 'folder\.py'"),
            ("mine", r"unknown attack 'mine': did you mean your file mine\.py\?"),
            ("mine.pyx", "unknown attack 'mine.pyx': "),
            ("sgn-flip", "unknown attack 'sgn-flip': did you mean sign-flip"),
            ("mine.py:_hidden", "'_hidden' in 'mine.py' is not a subclass"),
        ],
    )
    def test_of_spelling(self, write: Write, spec: str, message: str) -> None:
        write(TWO + "\n_hidden = 3\n")
        Path("folder.py").mkdir()
        with pytest.raises(OperatorError, match=f"^{message}") as caught:
            make_attack(spec)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", r"'mine\.py' defines 0 tasks: it needs a complete subclass of troth\.training\.Task"),
            (
                "from troth.training import Task\nclass T(Task):\n    def model(self): ...\n",
                r"defines 0 tasks: .*\(T lacks batch and loss\)",
            ),
            ("from troth.training import *\n", "defines 0 tasks"),
            (ATTACK, "defines 0 tasks"),
        ],
    )
    def test_no_task_in_a_file(self, write: Write, text: str, message: str) -> None:
        write(text)
        with pytest.raises(OperatorError, match=message):
            make_task("mine.py")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("    width: int\n", "'mine.py' needs a value for its option 'width': write width=…"),
            ("    width: list = None\n", None),
            ("    def __post_init__(self):\n        raise ValueError('no')\n", "'mine.py': no"),
            (
                "    def __post_init__(self):\n        open('nothing')\n",
                r"'.*mine\.py', line \d+, in __post_init__: FileNotFound",
            ),
        ],
    )
    def test_an_object_that_cannot_be_made(self, write: Write, text: str, message: str | None) -> None:
        head = "from dataclasses import dataclass\nfrom troth.attacks import GradientAttack\n@dataclass(frozen=True)\n"
        write(f"{head}class Mine(GradientAttack):\n{text}")
        if message is None:
            assert make_attack("mine.py") is not None
            with pytest.raises(OperatorError, match=r"option 'width' is of type .*list.*, which cannot be set here"):
                make_attack("mine.py:width=3")
            return
        with pytest.raises(OperatorError, match=f"^{message}"):
            make_attack("mine.py")


class TestPackages:
    @pytest.fixture
    def install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
        """A package on the path that offers something, as if it were installed."""

        def install(package: str, entry_points: str, code: str) -> None:
            site = tmp_path / f"site-{package}"
            info = site / f"{package}-1.0.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(entry_points)
            (site / f"{package}.py").write_text(code)
            monkeypatch.syspath_prepend(str(site))
            monkeypatch.delitem(sys.modules, package, raising=False)

        return install

    def test_offer_all_three_kinds(self, install: Callable[[str, str, str], None]) -> None:
        points = "[troth.attacks]\nloud = offers:Loud\n[troth.rules]\nmid = offers:middle\n[troth.tasks]\ntiny = offers:tiny\n"
        install(
            "offers",
            points,
            f"{ATTACK}\n{RULE}\nfrom troth.training.tasks.small_images import Digits\ntiny = Digits(hidden=2)\n",
        )
        assert vars(make_attack("loud:scale=9"))["scale"] == 9.0
        assert make_task("tiny") == Digits(hidden=2)
        rule = make_rule("mid")
        assert isinstance(rule, RuleEntry)
        assert rule.function.__name__ == "middle"
        with pytest.raises(OperatorError, match=r"^unknown attack 'lout': did you mean loud"):
            make_attack("lout")

    def test_never_replace_a_name_of_ours(self, install: Callable[[str, str, str], None]) -> None:
        install("hijack", "[troth.attacks]\nsign-flip = hijack:Loud\n", ATTACK)
        assert make_attack("sign-flip") == SignFlip()

    def test_two_with_one_name(self, install: Callable[[str, str, str], None]) -> None:
        for package in ("one_of_two", "two_of_two"):
            install(package, f"[troth.attacks]\nloud = {package}:Loud\n", ATTACK)
        with pytest.raises(
            OperatorError, match=r"^attack 'loud' is offered by (\w+) and (\w+): uninstall one of them$"
        ):
            make_attack("loud")

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("1 / 0", "attack 'loud' of broken cannot be imported: ZeroDivisionError: division by zero"),
            ("", "attack 'loud' of broken cannot be imported: AttributeError: "),
            ("Loud = 3", "attack 'loud' of broken: broken:Loud is not a subclass of troth.attacks.GradientAttack"),
        ],
    )
    def test_broken(self, install: Callable[[str, str, str], None], code: str, message: str) -> None:
        install("broken", "[troth.attacks]\nloud = broken:Loud\n", code)
        with pytest.raises(OperatorError, match=f"^{message}"):
            make_attack("loud")


@dataclass(frozen=True)
class Shove(GradientAttack):
    length: float = 2.0
    towards: Any = None


def rule(vectors_PD: Any, *, k: int = 1) -> Any:
    return vectors_PD[k]


class Plain:
    pass


class TestNames:
    @pytest.mark.parametrize(
        ("thing", "name"),
        [
            ("sign-flip:scale=3", "sign-flip:scale=3"),
            (Shove(), f"{__name__}.Shove:length=2.0,towards=None"),
            (Shove(1, towards=rule), f"{__name__}.Shove:length=1,towards={__name__}.rule"),
            (Shove(1, towards=(1, "a")), f"{__name__}.Shove:length=1,towards=1+a"),
            (Shove(1, towards=[1.5] * 99), f"{__name__}.Shove:length=1,towards=builtins.list"),
            (Shove(1, towards=Plain()), f"{__name__}.Shove:length=1,towards={__name__}.Plain"),
            (rule, f"{__name__}.rule"),
            (partial(rule, k=3), f"{__name__}.rule:k=3"),
            (SignFlip(), "sign-flip"),
            (SignFlip(2.0), "sign-flip:scale=2.0"),
        ],
    )
    def test_are_readable_and_the_same_in_every_process(self, thing: Any, name: str) -> None:
        assert name_of(thing, ATTACKS) == name

    def test_of_ours_make_the_same_thing_again(self) -> None:
        task = Digits(hidden=3)
        assert make_task(name_of(task, TASKS)) == task

    def test_of_a_file(self, write: Write) -> None:
        write(ATTACK)
        assert name_of(make_attack("mine.py")) == "mine.py:Loud:scale=3.0,name=x,steps=None"


class TestBlame:
    def test_a_users_file_is_named_with_line_and_function(self, write: Write) -> None:
        write(ATTACK.replace("return own_BD * self.scale", "return {}['a\\nb']"))
        with pytest.raises(KeyError) as caught:
            make_attack("mine.py").forge(None, None)  # type: ignore[arg-type]
        told = blamed(caught.value)
        assert told is not None
        assert told.startswith(f"'{Path('mine.py').resolve()}', line 13, in forge: KeyError: ")
        assert "\n" not in told

    def test_others_are_not_blamed(self) -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            _ = 1 / 0
        assert blamed(caught.value) is None
