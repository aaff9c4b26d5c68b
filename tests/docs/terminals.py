"""Friends' terminals: each has a process of its own at a time, and lines that are waited for."""

import signal
import subprocess
from pathlib import Path
from threading import Condition, Thread

from tests.docs.pages import Seen, fits
from tests.docs.shell import environment

_SIGNALS = {"^C": signal.SIGINT, "Killed": signal.SIGKILL}


class Terminal:
    """One friend's terminal: lines come from a thread that reads them, and are awaited in order."""

    def __init__(self, person: str, clone: Path) -> None:
        self.person = person
        self._clone = clone
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._next = 0
        self._ended = True
        self._news = Condition()
        self._code = 0

    def type(self, command: str) -> None:
        """Start a command, or show how the last one ended."""
        if command == "echo $?":
            self._finish()
            self._say(str(self._code))
            return
        self._finish()
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self._clone,
            env=environment(self._clone),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._ended = False
        Thread(target=self._read, args=(self._process,), daemon=True).start()

    def see(self, seen: Seen, patience_s: float = 400) -> None:
        """Wait for the lines that are shown; send the signals among them."""
        for shown in seen.lines:
            if shown in _SIGNALS:
                assert self._process is not None, f"{self.person} runs nothing"
                assert self._process.poll() is None, f"{self.person} had ended before {shown}:\n{self._said()}"
                self._process.send_signal(_SIGNALS[shown])
                if shown == "Killed":
                    self._finish()
            elif shown.strip() != "…":
                self._await(shown, patience_s)

    def close(self) -> None:
        """End what still runs, and leave what was on the screen in a file, to look at."""
        if self._process is not None:
            self._process.kill()
            self._finish()
        (self._clone / f"terminal-{self.person}.txt").write_text("\n".join(self._lines), encoding="utf-8")

    def _await(self, shown: str, patience_s: float) -> None:
        with self._news:
            found = self._news.wait_for(lambda: self._find(shown) or self._ended, patience_s)
            if not (found and self._find(shown)):
                raise AssertionError(f"{self.person} never saw\n  {shown}\nbut\n{self._said()}")
            while not fits(shown, self._lines[self._next]):
                self._next += 1
            self._next += 1

    def _find(self, shown: str) -> bool:
        return any(fits(shown, line) for line in self._lines[self._next :])

    def _said(self) -> str:
        return "\n".join(self._lines[-25:])

    def _finish(self) -> None:
        """Wait until the process has ended and all of its lines are here."""
        if self._process is None:
            return
        self._code = self._process.wait(timeout=300)
        with self._news:
            assert self._news.wait_for(lambda: self._ended, 60)

    def _say(self, line: str) -> None:
        with self._news:
            self._lines.append(line)
            self._news.notify_all()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._say(line.rstrip())
        with self._news:
            self._ended = True
            self._news.notify_all()


class Terminals:
    """The terminals of all friends on a page."""

    def __init__(self, clone: Path) -> None:
        self._clone = clone
        self._of: dict[str, Terminal] = {}

    def __enter__(self) -> "Terminals":
        return self

    def __exit__(self, *_: object) -> None:
        for terminal in self._of.values():
            terminal.close()

    def of(self, person: str) -> Terminal:
        return self._of.setdefault(person, Terminal(person, self._clone))
