"""One run of a sweep, in whatever process it is: from its options to what goes into the results."""

import time
from contextlib import redirect_stdout
from sys import stderr
from typing import Any, NamedTuple

import torch

from troth.evidence import RunSummary
from troth.evidence.summary import finite_or_none
from troth.lab.sweeps.sweep import Job, key_of
from troth.plugins import blamed, in_one_line
from troth.simulation import start

_CHANGED = "a file that it names, or Troth itself, is not the one that the sweep began with: run the sweep again"


class Performed(NamedTuple):
    """Results of a run, or the reason why there are none; and how long it took, which is nobody's result."""

    found: dict[str, Any]
    seconds: float

    @property
    def failed(self) -> bool:
        return "error" in self.found


def perform(job: Job) -> Performed:
    """Run a job to its end with one thread. An error is a result: the other runs go on."""
    torch.set_num_threads(1)  # runs share the cores, and bits must not depend on how
    torch.set_default_dtype(torch.float32)  # a user's own file in a run before may have left another
    began = time.monotonic()
    try:
        with job.at_its_place(), redirect_stdout(stderr):  # what a user's own file prints is not our output
            scenario = job.scenario()
            if key_of(scenario.config()) != job.key:
                return Performed(failure(_CHANGED), 0.0)
            found = _found(start(scenario, evidence=False).finish().summary)
    except Exception as error:
        found = failure(blamed(error) or in_one_line(error))
    return Performed(found, time.monotonic() - began)


def failure(why: str) -> dict[str, Any]:
    return {"error": why}


def _found(summary: RunSummary) -> dict[str, Any]:
    details = summary.details
    outcome = {
        "steps": summary.steps,
        "byzantine": summary.byzantine,
        "parameters": details["parameters"],
        "attacked_steps": details["attacked_steps"],
        "diverged_at": details["diverged_at"],
        "gradients": details["gradients_computed"],
        "assumed_byzantine": details.get("assumed_byzantine"),
        "removed": details.get("removed", {}),
    }
    if details.get("unused_shards"):
        outcome["unused_shards"] = True
    if "banned" in details:
        outcome |= {
            "bans": [{name: ban[name] for name in ("peer", "step", "reason")} for ban in details["banned"]],
            **{
                name: details[name]
                for name in ("honest_banned", "absent", "stalled", "agreement", "audits", "tolerant_audits", "trials")
            },
            **{name: details[name] for name in ("announced_bytes_per_step", "bulk_bytes_per_step")},
        }
    found: dict[str, Any] = finite_or_none({"metrics": summary.metrics, "curve": summary.curve, "outcome": outcome})
    return found
