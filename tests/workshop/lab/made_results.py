"""Results of sweeps that nobody ran, for tests: `python -m tests.workshop.lab.made_results FOLDER` writes some."""

import json
import math
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

STEPS, EVERY, START = 300, 10, 50
# How much of its accuracy a defence loses to an attack in the end, at most.
HARM = {"mean": 0.85, "krum": 0.35, "median": 0.25, "trimmed-mean": 0.3, "bulyan": 0.4, "rfa": 0.2, "safeguard": 0.05}


def made_run(labels: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A line of `results.jsonl`: labels, and whatever should be different from what is made up."""
    given = {"attack": "none", "defence": "troth", "byzantine": 7, **labels}
    text = json.dumps(labels, sort_keys=True)
    chance = random.Random(text)
    calm = given["attack"] == "none" or not given["byzantine"]
    liars = [] if calm else sorted(chance.sample(range(16), given["byzantine"]))
    bans = _bans(chance, liars) if given["defence"] == "troth" else []
    attack_strength = random.Random(repr(given["attack"])).random()
    harm = 0.0 if calm else attack_strength * HARM.get(given["defence"], 0.3)
    curve = []
    for step in range(0, STEPS + 1, EVERY):
        accuracy = 0.1 + 0.87 * (1 - math.exp(-step / 40)) + chance.gauss(0, 0.004)
        since = max(0, step - START)
        if given["defence"] == "troth":
            lasts = bans[-1]["step"] if bans else START
            accuracy -= 0.12 * attack_strength * (step > START) * math.exp(-max(0, step - lasts) / 15) * (not calm)
        else:
            accuracy -= harm * (1 - math.exp(-since / 60))
        accuracy = min(max(accuracy, 0.08), 0.99)
        curve.append({"step": step, "accuracy": round(accuracy, 4), "loss": round(-math.log(accuracy), 4)})
    run: dict[str, Any] = {
        "key": sha256(text.encode()).hexdigest()[:16],
        "version": "0.1.0",
        "sweep": "made",
        "labels": dict(labels),
        "config": _config(given, calm),
        "metrics": {name: curve[-1][name] for name in ("accuracy", "loss")},
        "curve": curve,
        "outcome": {
            "steps": STEPS,
            "parameters": 4810,
            "byzantine": liars,
            "attacked_steps": 0 if calm else STEPS - START,
            "diverged_at": None,
            "bans": bans,
            "honest_banned": 0,
            "absent": [],
            "removed": {str(peer): START + 40 for peer in liars} if given["defence"] == "safeguard" else {},
            "assumed_byzantine": {"bulyan": 3, "krum": 6}.get(given["defence"]) if liars else None,
            "gradients": 16 * STEPS + (STEPS if given["defence"] == "troth" else 0),
            "announced_bytes_per_step": 5200 if given["defence"] == "troth" else 0,
            "agreement": True,
        },
    }
    for name, change in changes.items():
        run[name] = {**run[name], **change} if isinstance(change, dict) else change
    return run


def made_sweep(axes: Mapping[str, Sequence[Any]], seeds: Sequence[int] = (0, 1, 2)) -> list[dict[str, Any]]:
    """All combinations of the axes."""
    names = [*axes, "seed"]
    return [made_run(dict(zip(names, values, strict=True))) for values in product(*axes.values(), seeds)]


def write_results(
    folder: Path, runs: Iterable[Mapping[str, Any]], toml: str = 'name = "made"\n', *, times: bool = True
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = list(runs)
    (folder / "results.jsonl").write_text("".join(json.dumps(run) + "\n" for run in lines))
    (folder / "sweep.toml").write_text(toml)
    if times:
        rows = [{"key": run["key"], "seconds": 2.5 + at % 3} for at, run in enumerate(lines)]
        (folder / "times.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _bans(chance: random.Random, liars: Sequence[int]) -> list[dict[str, Any]]:
    step, found = START, []
    for peer in liars:
        step += chance.randint(1, 12)
        found.append({"peer": peer, "step": step, "reason": "wrong gradient"})
    return found


def _config(given: Mapping[str, Any], calm: bool) -> dict[str, Any]:
    return {
        "task": "digits",
        "peers": 16,
        "steps": STEPS,
        "attack_start": START,
        "attack_stop": None,
        **{name: value for name, value in given.items() if name != "attack"},
        "byzantine": 0 if calm else given["byzantine"],
        "attack": "sign-flip" if calm else given["attack"],
    }


def main(folder: Path) -> None:
    attacks = "none sign-flip random-direction label-flip delayed-gradient ipm-0.6 ipm-0.1 alie mimic min-max gaussian zero rop"
    defences = "troth mean krum median trimmed-mean bulyan mda meamed caf nnm rfa safeguard centered-clip-momentum"
    matrix = made_sweep({"attack": attacks.split(), "defence": defences.split()})
    for run in matrix:
        if run["labels"]["attack"] == "gaussian" and run["labels"]["defence"] == "mean":
            run["metrics"] = {"accuracy": None, "loss": None}
            run["outcome"]["diverged_at"] = 90
            run["curve"] = run["curve"][:10]
    failed = {
        "key": "f" * 16,
        "labels": {"attack": "zero", "defence": "<script>x", "seed": 1},
        "config": {},
        "error": "out of memory",
    }
    head = 'name = "matrix"\ntitle = "Every attack against every defence"\ncompare = "attack × defence"\n'
    expected = (
        '[[expected]]\nattack = "alie"\ndefence = "median"\naccuracy = 79.4\nsource = "Karimireddy et al. 2021"\n'
    )
    write_results(folder / "matrix", [*matrix, failed], head + expected)
    tau = made_sweep({"attack": ["none", "alie", "rop"], "validators": [1, 2, 4], "tau": [0.01, 0.1, 1.0]})
    write_results(
        folder / "tau", tau, 'name = "tau"\ntitle = "The radius and the validators"\ncompare = "attack × tau"\n'
    )
    harmless = made_sweep({"defence": ["troth", "mean"]}, range(10))
    write_results(
        folder / "does-no-harm",
        harmless,
        'name = "does-no-harm"\ntitle = "Without liars"\npaired = ["troth", "mean"]\n',
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
