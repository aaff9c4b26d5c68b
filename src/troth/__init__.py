"""Troth: people who do not trust each other train one neural network together.

import troth
result = troth.simulate("digits", peers=16, byzantine=7, attack="alie").run()   # or iterate over its steps
with troth.join("run.toml", identity="me.key") as run:                           # a member of a real run
    for step in run:
        print(step.number, step.loss, step.bans)
    model = run.model()                                                          # your own module, weights loaded
troth.verify("ban-step3-mallory.json", run="run.toml")

Names are imported when they are first used: PyTorch takes seconds, and `import troth` none. docs/python-api.md has a
page about them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from troth.version import __version__

if TYPE_CHECKING:
    import troth.attacks as attacks
    import troth.events as events
    import troth.rules as rules
    import troth.testing as testing
    from troth.api.keys import IdentityError
    from troth.api.member import JoinError, MemberRun, join
    from troth.api.new import NewRunError, new
    from troth.api.read_events import EventsError, read_events
    from troth.api.simulate import Simulation, SimulationResult, simulate
    from troth.api.steps import Ban, Step
    from troth.api.verify import Result, Verdict, VerifyError, verify
    from troth.crypto import Identity, KeyFileError, Stream, stream
    from troth.errors import OperatorError
    from troth.network.manifest.manifest import Founder, Manifest
    from troth.network.manifest.toml import ConsentError, ManifestError
    from troth.network.node.node import BannedError
    from troth.protocol.core.run import CannotGoOnError
    from troth.protocol.recovery.ledger import ForkedError
    from troth.protocol.recovery.member import RemovedError
    from troth.training.dataset_task import task
    from troth.training.task import Task, TaskError

__all__ = [
    "Ban",
    "BannedError",
    "CannotGoOnError",
    "ConsentError",
    "EventsError",
    "ForkedError",
    "Founder",
    "Identity",
    "IdentityError",
    "JoinError",
    "KeyFileError",
    "Manifest",
    "ManifestError",
    "MemberRun",
    "NewRunError",
    "OperatorError",
    "RemovedError",
    "Result",
    "Simulation",
    "SimulationResult",
    "Step",
    "Stream",
    "Task",
    "TaskError",
    "Verdict",
    "VerifyError",
    "__version__",
    "attacks",
    "events",
    "join",
    "new",
    "read_events",
    "rules",
    "simulate",
    "stream",
    "task",
    "testing",
    "verify",
]

_HOMES = {
    "troth.api.keys": ("IdentityError",),
    "troth.api.member": ("JoinError", "MemberRun", "join"),
    "troth.api.new": ("NewRunError", "new"),
    "troth.api.read_events": ("EventsError", "read_events"),
    "troth.api.simulate": ("Simulation", "SimulationResult", "simulate"),
    "troth.api.steps": ("Ban", "Step"),
    "troth.api.verify": ("Result", "Verdict", "VerifyError", "verify"),
    "troth.crypto": ("Identity", "KeyFileError", "Stream", "stream"),
    "troth.errors": ("OperatorError",),
    "troth.network.manifest.toml": ("ConsentError", "ManifestError"),
    "troth.network.manifest.manifest": ("Founder", "Manifest"),
    "troth.network.node.node": ("BannedError",),
    "troth.protocol.core.run": ("CannotGoOnError",),
    "troth.protocol.recovery.ledger": ("ForkedError",),
    "troth.protocol.recovery.member": ("RemovedError",),
    "troth.training.dataset_task": ("task",),
    "troth.training.task": ("Task", "TaskError"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ("attacks", "events", "rules", "testing")


if not TYPE_CHECKING:  # to a type checker a misspelt name is an error

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"troth.{name}")
        if name not in _HOME:
            raise AttributeError(f"module 'troth' has no attribute '{name}'")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
