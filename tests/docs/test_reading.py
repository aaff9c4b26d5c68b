"""The reader of pages: it sees what is there, and a page that shows something else than what is said does not pass."""

from pathlib import Path

import pytest

from tests.docs.pages import Command, Script, Seen, events, fits
from tests.docs.shell import make_clone, run_here
from tests.docs.terminals import Terminals

PAGE = """# A page

```sh
troth tasks    # a comment
troth key new \\
    me.key
```

```
Wrote …
```

```python
# lines.py
x = 1
```

```console
$ ls
a file
alice$ troth join run.toml
12:00:00  here
```

```console alice
^C
alice$ echo $?
130
```
"""


def test_a_page_is_read_in_order(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    assert events(page) == [
        Command("troth tasks"),
        Command("troth key new me.key", ("Wrote …",)),
        Script("# lines.py\nx = 1\n", "lines.py"),
        Command("ls", ("a file",)),
        Command("troth join run.toml", person="alice"),
        Seen("alice", ("12:00:00  here",)),
        Seen("alice", ("^C",)),
        Command("echo $?", person="alice"),
        Seen("alice", ("130",)),
    ]


@pytest.mark.parametrize(
    ("shown", "said", "same"),
    [
        ("Wrote …: 600 steps.", "Wrote run.toml: 600 steps.\n", True),
        ("Wrote …: 600 steps.", "Wrote run.toml: 601 steps.", False),
        ("17:05:53  step 9: dave is back", "09:00:01  step 88: dave is back", True),
        ("17:05:53  step 9: dave is back", "09:00:01  step 88: bob is back", False),
        ("step 600/600  done", "step 599/600  done", False),
        ("3 are needed", "2 are needed", False),
        ("one line", "one line\nand another", False),
    ],
)
def test_only_what_varies_may_differ(shown: str, said: str, same: bool) -> None:
    assert fits(shown, said) is same


@pytest.mark.parametrize("command", ["troth key new /nowhere/me.key", "ls nothing-like-it"])
def test_a_command_that_fails_is_noticed(command: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ended with"):
        run_here(command, make_clone(tmp_path))


def test_a_line_that_does_not_come_is_noticed(tmp_path: Path) -> None:
    with Terminals(make_clone(tmp_path)) as terminals:
        terminals.of("alice").type("echo hello")
        with pytest.raises(AssertionError, match="never saw"):
            terminals.of("alice").see(Seen("alice", ("goodbye",)))
        terminals.of("alice").type("echo $?")
        terminals.of("alice").see(Seen("alice", ("0",)))
