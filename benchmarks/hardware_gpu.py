"""A GPU and the CPU beside it, as two classes of hardware: `python -m benchmarks.hardware_gpu --data FOLDER --out FILE.json`.

Four parts, about five minutes in all on an H200 with 16 cores; what is known is written to the file after each piece:

* `doctor`: h as `troth doctor` finds it for three forms of ResNet-18 on CIFAR-10, with few seeds; and the real distances
  between GPU and CPU, as auditors would see them (SPEC D3), of which none should be above 2.5h, where jurors convict;
* `protocol`: a run of 16 honest peers, 4 of them on the CPU, until 100 audits across classes have been made;
* `hide`: the same with five liars who lie just below what is accused of, and well above it;
* `albert`: doctor and distances of ALBERT, with `--text`, a text file.

`--quick --device cpu` tries all of it in miniature where there is no GPU, with float64 as the other class.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context, Decimal
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch

from troth.protocol.step.audits import CONVICT
from troth.training import Problem, make_task
from troth.training.hardware import Machine, describe, make_machines
from troth.training.measurement import distances, extrapolated, measure
from troth.workshop.simulation import ProtocolSimulation, Scenario

NETS = {
    "relu, batch norm": "",
    "gelu, group norm": "activation=gelu,norm=group",
    "tanh, group norm": "activation=tanh,norm=group",
}
MIXED = "gelu, group norm"  # the form with which the protocol is run
PEERS, ON_CPU, LIARS, VALIDATORS, START = 16, 4, 5, 5, 2
SHARES = (0.9, 3.0)  # of 2.5h: below what is accused of, 5h, and above
MOST_H = 0.19  # a run needs less than 0.2
LONG = ("all", "losses", "options", "real", "ways")  # figures that are not shown on the way
PARTS = ("doctor", "protocol", "hide", "albert")


@dataclass(frozen=True)
class Sizes:
    """How much is measured; `--quick` takes the second of these."""

    seeds: int  # of the doctor, at each of two points
    pairs: int  # of real gradients
    steps: int  # of training, before they are compared
    crossed: int  # audits across classes to wait for …
    crossed_lying: int  # … and where there are liars
    most_steps: int  # of a run of the protocol
    most_s: float  # that a run of the protocol may take
    width: int
    test_images: int
    albert: str  # its size
    albert_seeds: int
    albert_pairs: int
    albert_steps: int


WHOLE = Sizes(6, 112, 60, 110, 60, 80, 240.0, 64, 1000, "base", 2, 20, 10)
QUICK = Sizes(2, 4, 2, 3, 4, 30, 30.0, 2, 50, "tiny", 2, 2, 1)


class Book:
    """Results so far, in a file that is whole at any moment."""

    def __init__(self, path: Path) -> None:
        self._path, self._start = path, time.monotonic()
        self.results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def note(self, part: str, name: str, values: Any) -> None:
        self.results.setdefault(part, {})[name] = values
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self.results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        partial.replace(self._path)
        shown = {**values, **values.get("real", {})}
        short = [f"{key} {value}" for key, value in shown.items() if key not in LONG]
        self.say(f"{part}, {name}: {', '.join(short)}")

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self._start:6.1f} s  {line}", flush=True)


class Bench:
    def __init__(self, data: Path, text: Path | None, device: str, sizes: Sizes, book: Book) -> None:
        self.sizes, self.book = sizes, book
        self._data, self._text, self._device = data, text, device
        self._other = "cpu" if device == "cuda" else "cpu:float64=true"

    def doctor(self) -> None:
        for name in NETS:
            self._measured("doctor", name, self._task(name), self.sizes.seeds, self.sizes.pairs, self.sizes.steps)

    def albert(self) -> None:
        if self._text is None:
            self.book.say("albert: left out, it needs --text")
            return
        sizes, vocabulary = self.sizes, 30_000 if self.sizes.albert != "tiny" else 300
        task = f"albert:data={self._text},size={sizes.albert},vocabulary={vocabulary},length=128,batch_size=4"
        self._measured("albert", sizes.albert, task, sizes.albert_seeds, sizes.albert_pairs, sizes.albert_steps)

    def protocol(self) -> None:
        self._mixed("protocol", "honest", self.sizes.crossed, byzantine=0)

    def hide(self) -> None:
        for share in SHARES:
            attack = f"hide:deviation={self._h():g},share={share:g}"
            lying = {"byzantine": LIARS, "attack": attack, "attack_start": START}
            self._mixed("hide", f"share {share:g}", self.sizes.crossed_lying, **lying)

    def _task(self, name: str) -> str:
        options = f"width={self.sizes.width},test_images={self.sizes.test_images},{NETS[name]}"
        return f"resnet18:data={self._data},{options.rstrip(',')}"

    def _measured(self, part: str, name: str, spec: str, seeds: int, pairs: int, steps: int) -> None:
        """h by the doctor, then real distances."""
        self.book.say(f"{part}, {name}: the doctor …")
        task, start = make_task(spec), time.monotonic()
        problem = Problem(task, device=self._device, lanes_for=PEERS, pad=self._device == "cuda")
        found = measure(problem, peers=PEERS, seeds=seeds, points=2, steps=steps)
        ways = {way.name: _finite({**asdict(way), "same_bits": way.same_bits}) for way in (*found.ways, found.jumps)}
        values = {
            "task": re.sub(r"data=[^,]*", "data=…", spec),
            "parameters": problem.size,
            "machine": describe(problem),
            "seeds": 2 * seeds,
            "steps": steps,
            "ways": ways,
            "stands_for_audits": found.stands_for,
            "h": found.deviation if isfinite(found.deviation) else None,
            "doctor_s": round(time.monotonic() - start, 1),
        }
        self.book.note(part, name, values)
        start = time.monotonic()
        machine = Machine(task, make_machines(self._other)[0])
        apart = distances(problem, machine, peers=PEERS, seeds=pairs, steps=steps)
        above = float(np.mean([distance > CONVICT * found.deviation for distance in apart]))
        real = {
            "machine": describe(machine.problem),
            "pairs": len(apart),
            "median": float(np.median(apart)),
            "largest": max(apart),
            "share_above_convict": above,
            "expected_in_a_run": extrapolated(apart),
            "all": sorted(apart),
            "pairs_s": round(time.monotonic() - start, 1),
        }
        self.book.note(part, name, {**values, "real": _finite(real)})

    def _h(self) -> float:
        """The doctor's h for the net that is run, rounded up, and less than what a run takes."""
        known = self.book.results.get("doctor", {}).get(MIXED)
        if known is None:
            raise SystemExit(f"no h for {MIXED} in the file: measure the part doctor first")
        return MOST_H if known["h"] is None else min(MOST_H, _rounded_up(known["h"]))

    def _mixed(self, part: str, name: str, crossed: int, **options: Any) -> None:
        """A run of which four peers compute on the other machine, until enough audits were made across classes."""
        self.book.say(f"{part}, {name}: 16 peers, {ON_CPU} of them on {self._other}, h = {self._h():g} …")
        begun = time.monotonic()
        scenario = Scenario(
            task=self._task(MIXED),
            peers=PEERS,
            validators=VALIDATORS,
            device=self._device,
            machines=f"{self._other}{',' if ':' in self._other else ':'}peers={ON_CPU}",
            deviation=self._h(),
            steps=self.sizes.most_steps,
            evaluate_every=self.sizes.most_steps,
            **options,
        )
        simulation, losses, start = ProtocolSimulation(scenario), list[float](), time.monotonic()
        for report in simulation.steps():
            losses.append(report.loss)
            if simulation.tolerant_audits >= crossed or time.monotonic() - start > self.sizes.most_s:
                break
        banned = {ban.peer for ban in simulation.bans}
        values = {
            "h": self._h(),
            "options": options,
            "steps": simulation.steps_done,
            "audits": simulation.audits,
            "audits_across_classes": simulation.tolerant_audits,
            "classes": len({member.work.hardware_class() for member in simulation.peers.values()}),
            "liars": simulation.byzantine,
            "liars_banned": {ban.peer: ban.step for ban in simulation.bans if ban.peer in simulation.liars},
            "honest_banned": sorted(banned - simulation.liars),
            "trials": simulation.trials,
            "agreement": simulation.agreement,
            "losses": losses,
            "metrics": simulation.evaluate(),
            "prepared_s": round(start - begun, 1),
            "steps_s": round(time.monotonic() - start, 1),
        }
        self.book.note(part, name, _finite(values))


def _rounded_up(number: float) -> float:
    """To two digits, as the doctor says it; its own function would need the command line's libraries here."""
    return float(Context(prec=2, rounding=ROUND_CEILING).plus(Decimal(number)))


def _finite(value: Any) -> Any:
    """JSON has no infinity: null stands for it."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hardware_gpu", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10")
    parser.add_argument("--text", type=Path, help="text file for ALBERT, plain or compressed")
    parser.add_argument("--out", type=Path, required=True, help="JSON file; parts that are in it already stay")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of " + ", ".join(PARTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="in miniature, to see that it runs")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as peers compute by default
    book = Book(options.out)
    bench = Bench(options.data, options.text, options.device, QUICK if options.quick else WHOLE, book)
    book.note("about", "run", {"command": " ".join(sys.argv[1:]), "torch": torch.__version__})
    todo: dict[str, Callable[[], None]] = {
        "doctor": bench.doctor,
        "protocol": bench.protocol,
        "hide": bench.hide,
        "albert": bench.albert,
    }
    for part in options.parts.split(","):
        todo[part]()
    book.say("done")


if __name__ == "__main__":
    main()
