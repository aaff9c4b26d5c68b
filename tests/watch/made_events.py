"""Events to watch, made up."""

from pathlib import Path

from troth.events.file import EVENTS, EventFile
from troth.events.kinds import Audit, Ban, Began, Ended, Event, KnownPeer, PhaseTime, Stepped, Trial

NAMES = ("ann", "bob", "cid", "mallory")


def began(**more: object) -> Began:
    fields: dict[str, object] = {
        "source": "member",
        "of": 20,
        "peers": tuple(KnownPeer(name=name) for name in NAMES),
        "name": "friends",
        "task": "digits",
        "me": "ann",
        "withstands": 1,
        "quorum": 3,
        "at": 1000.0,
    }
    return Began(**(fields | more))  # type: ignore[arg-type]


def stepped(step: int, **more: object) -> Stepped:
    fields: dict[str, object] = {
        "step": step,
        "updates": step + 1,
        "of": 20,
        "members": 4,
        "loss": 2.0 / (step + 1),
        "validators": ("bob",),
        "audits": (Audit("bob", "cid", step - 1),),
        "owners": NAMES,
        "phases": (PhaseTime(phase="commit", began=0.0, ended=0.5, last=("cid",)),),
        "withstands": 1,
        "quorum": 3,
        "seconds": 0.5,
        "at": 1001.0 + step,
    }
    return Stepped(**(fields | more))  # type: ignore[arg-type]


def banned(step: int, name: str = "mallory") -> Stepped:
    file = f"ban-step{step}-{name}.json"
    trial = Trial(
        kind="gradient",
        target=name,
        step=step - 1,
        verdict="accused",
        accuser="bob",
        banned=name,
        votes={"ann": "accused", "bob": "accused", "cid": "accused"},
        quorum=3,
        story=(f"{name} claimed a gradient", "bob recomputed another one"),
        evidence=file,
    )
    return stepped(
        step,
        members=3,
        trials=(trial,),
        banned=(
            Ban(peer=name, reason=f"its gradient of step {step - 1} does not follow from its seed", evidence=file),
        ),
    )


def write(folder: Path, *events: Event, fresh: bool = True) -> Path:
    file = EventFile(folder / EVENTS, fresh=fresh)
    for event in events:
        file.add(event)
    file.close()
    return folder


def whole_run(steps: int = 10) -> list[Event]:
    return [began(of=steps), *(stepped(step, of=steps) for step in range(steps)), Ended(how="over")]
