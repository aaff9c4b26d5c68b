"""`troth doctor`: what it measures, says and recommends."""

import json
import re
from math import inf
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.cli.conftest import Troth
from tests.cli.test_lists import TASK
from troth.cli.doctor import advice, rounded_up
from troth.training import Problem, make_task
from troth.training.hardware import class_digest
from troth.training.measurement import Measurement, Spread

SHORT = ("doctor", "--task", "quadratic:dimension=40", "--peers", "4", "--seeds", "2", "--steps", "2")


def measured(deviation: float, largest: float = 1e-6) -> Measurement:
    spread = Spread("float64", 10, 1e-7, largest, 0)
    return Measurement((spread,), spread, noise=0.5, deviation=deviation)


class TestResults:
    def test_json_and_nothing_else(self, troth: Troth) -> None:
        done = troth(*SHORT, "--json")
        assert done.code == 0
        assert re.fullmatch(r"(measuring: [0-9]+%\n)*", done.err), "a slow machine says how far it is"
        found = json.loads(done.out)
        problem = Problem(make_task("quadratic:dimension=40"), lanes_for=4)
        assert found["class"] == class_digest(problem).hex()
        assert (found["task"], found["parameters"], found["peers"], found["steps"]) == (SHORT[2], 40, 4, 2)
        names = {way["name"] for way in found["ways"]}
        assert {"1 thread", "one by one", "float64", "shaken inputs"} <= names
        assert all(way["comparisons"] == 6 for way in found["ways"]), "three points, since there are but two steps"
        assert found["jumps"]["stands_for_audits"] == 6 * 1024
        assert 0 < found["deviation"] < 0.01
        assert found["one_class"] is False
        assert "PyTorch" in found["machine"]
        assert found["plain_ms"] > 0
        assert all((way["ms"] is None) == ("shaken" in way["name"]) for way in found["ways"])

    def test_local_steps_have_a_class_of_their_own_and_no_deviation(self, troth: Troth) -> None:
        """[R2] The probe is a walk, as the run's contributions are."""
        plain, walked = troth(*SHORT, "--json"), troth(*SHORT, "--local-steps", "3", "--json")
        assert json.loads(plain.out)["class"] != json.loads(walked.out)["class"]
        assert troth(*SHORT, "--local-steps", "3").out.endswith("With local steps: one class only, whatever h is.\n")

    def test_a_table_and_a_recommendation(self, troth: Troth) -> None:
        done = troth(*SHORT)
        assert (done.code, done.err) == (0, "")
        shown = class_digest(Problem(make_task(SHORT[2]), lanes_for=4)).hex()[:8]
        for words in (f"class: {shown}", "float64", "shaken inputs", "1 thread  ", "jumps, provoked", "6,144 audits"):
            assert words in done.out
        assert "otherwise several with --hardware-deviation " in done.out.splitlines()[-1]

    def test_a_way_has_its_time_and_its_equal_bits(self, troth: Troth, monkeypatch: pytest.MonkeyPatch) -> None:
        other = Spread("TF32 off", 10, 1e-3, 1e-2, 4, ms=3.0)
        found = Measurement((other,), measured(1e-5).jumps, noise=0.5, deviation=1e-5, plain_ms=6.0)
        monkeypatch.setattr("troth.training.measurement.measure", lambda *_, **__: found)
        done = troth(*SHORT)
        assert "TF32 off" in done.out
        assert "3   0.5" in done.out, "milliseconds, and times the plain way"
        assert "4 of 10" in done.out

    def test_infinity_is_null_in_json(self, troth: Troth, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("troth.training.measurement.measure", lambda *_, **__: measured(inf, largest=inf))
        found = json.loads(troth(*SHORT, "--json").out, parse_constant=pytest.fail)
        assert found["deviation"] is None
        assert found["ways"][0]["largest"] is None
        assert found["one_class"] is True

    def test_a_terminal_gets_a_bar_on_standard_error_and_json_stays_clean(
        self, troth: Troth, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
        done = troth(*SHORT, "--json")
        assert json.loads(done.out)["peers"] == 4
        assert "measuring" in done.err
        assert "100%" in done.err

    def test_elsewhere_a_line_now_and_then(self, troth: Troth, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("troth.cli.progress._LINE_EVERY_S", -1.0)
        done = troth(*SHORT)
        assert done.err.splitlines()[-1] == "measuring: 100%"


class TestAdvice:
    def test_a_small_deviation_is_offered_rounded_up(self) -> None:
        lines = advice(measured(1.01e-5), 16)
        assert lines[0] == "Needed deviation: h = 1.1e-05."
        assert "5h = 5.5e-05" in lines[1]
        assert "7 liars of 16 (δ = 0.44)" in lines[2]
        assert advice(measured(1.01e-5), 4)[2].startswith("1 liar of 4 (δ = 0.25) can keep")
        assert "δ·5h·σ = 1.2e-05" in lines[2]
        assert lines[-1].endswith("otherwise several with --hardware-deviation 1.1e-05.")

    def test_a_large_one_is_not(self) -> None:
        lines = advice(measured(0.011), 16)
        assert lines[0] == "Needed deviation: h = 0.011."
        assert lines[-1] == "Recommended: one class only, since h is above 0.01."

    @pytest.mark.parametrize("deviation", [0.2, 3e4, inf])
    def test_beyond_a_whole_gradient_there_is_none(self, deviation: float) -> None:
        lines = advice(measured(deviation), 16)
        assert lines[0].startswith("No deviation h will do")
        assert lines[-1].startswith("Recommended: one class only.")
        assert "--hardware-deviation" not in " ".join(lines)

    @pytest.mark.parametrize(("number", "rounded"), [(1.01e-5, 1.1e-5), (0.25, 0.25), (0.0, 0.0), (991.0, 1000.0)])
    def test_never_rounded_down(self, number: float, rounded: float) -> None:
        assert rounded_up(number) == rounded


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--task", "digit"), "unknown task 'digit': did you mean digits"),
            (("--device", "tpu"), "--device is cpu or cuda, got 'tpu'"),
            (("--peers", "1"), "Invalid value for '--peers'"),
            (("--peers", "2000"), "Invalid value for '--peers'"),
            (("--peers", "41"), "--peers must be at least 2 and at most 40, got 41"),
            (("--seeds", "1"), "--seeds must be at least 2, got 1"),
            (("--steps", "0"), "--steps must be at least 1, got 0"),
            (("--seeds", "few"), "Invalid value for '--seeds'"),
        ],
        ids=" ".join,
    )
    def test_end_in_one_line_and_exit_code_2(self, troth: Troth, arguments: tuple[str, ...], message: str) -> None:
        done = troth(*SHORT, *arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"troth: {message}")
        assert done.err.count("\n") == 1

    def test_a_task_that_is_not_pure_has_no_class(self, troth: Troth) -> None:
        Path("mine.py").write_text(TASK.replace("3 * x}", "3 * x + torch.rand(8, 1)}"))
        done = troth("doctor", "--task", "mine.py", "--peers", "2")
        assert done.code == 2
        assert done.err.startswith("troth: batch() uses the global generator of torch")


def test_interrupted(troth: Troth, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: Any, **__: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("troth.training.measurement.measure", measure)
    done = troth(*SHORT, "--json")
    assert (done.code, done.out) == (130, "")
    assert done.err.startswith("troth: interrupted")
