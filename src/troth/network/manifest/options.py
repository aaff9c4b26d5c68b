"""The choices of the person who writes a manifest."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from troth.options import (
    BeyondGuarantee,
    CodeName,
    LocalSteps,
    OptimizerSpec,
    Option,
    Outer,
    Rate,
    ScheduleName,
    Steps,
    Tau,
    TauAuto,
    Validators,
    Warmup,
)

STRETCH: Final = 4.0


@dataclass(frozen=True)
class ManifestOptions:
    """None: as the task suggests, as the protocol allows, or as measured."""

    name: Annotated[str | None, Option("For people to read. Default: the task's.")] = None
    byzantine: Annotated[
        int | None,
        Option("How many liars the run promises to withstand. Default: as many as so many founders can."),
    ] = None
    validators: Validators = 1
    beyond_guarantee: BeyondGuarantee = False
    tau: Tau = None
    tau_auto: TauAuto = None
    deviation: Annotated[
        float | None,
        Option(
            "How much gradients may differ between members' hardware. 'troth doctor' measures it. Default: not at "
            "all, so audits are exact, and all members need machines of one class ('troth doctor' shows it).",
            flag="hardware-deviation",
        ),
    ] = None
    code: CodeName = "float32"
    probation: Annotated[
        int,
        Option(
            "Open the door: strangers may join, and are members after so many steps of audited work. At least 6·n/(n − b), "
            "for n founders of whom b may lie; 8·n/m is usual, with m validators. 0: founders only."
        ),
    ] = 0
    projections: Annotated[int, Option("Numbers that a report holds for each part.")] = 16
    steps: Steps = None
    seed: Annotated[int, Option("Seed of the initial parameters.")] = 0
    initial_state: Annotated[
        Path | None,
        Option(
            "Begin from this instead: a peer's folder (its last checkpoint), a checkpoint, or a model of the task's "
            "form, as safetensors. It is put beside the manifest, and everybody needs both.",
            flag="from",
        ),
    ] = None
    continues: Annotated[
        Path | None,
        Option(
            "Manifest of the run that --from comes from, to go on with other settings or members: the newest state in that "
            "folder that enough of its members signed is taken, and whoever joins checks their signatures. All that is not given "
            "here is as in that manifest; what differs is printed."
        ),
    ] = None
    optimizer: OptimizerSpec = None
    rate: Rate = None
    schedule: ScheduleName = "cosine"
    warmup: Warmup = 0
    local_steps: LocalSteps = 1
    outer: Outer = 1.0
    device: Annotated[Literal["cpu", "cuda"], Option("Where members compute gradients.")] = "cpu"
    one_by_one: Annotated[bool, Option("Never compute several gradients in one call.")] = False
    delta_s: Annotated[
        float, Option("Seconds that a message between honest peers may take at least.", flag="delta")
    ] = 2.0
    compute_s: Annotated[
        float | None,
        Option("Seconds for a gradient or an audit. Default: ten times what a gradient takes here.", flag="compute"),
    ] = None
    bulk_s: Annotated[
        float | None,
        Option("Seconds for the model's parts on their way. Default: enough for 20 Mbit/s.", flag="bulk"),
    ] = None
    stretch: Annotated[
        float,
        Option(
            "Upper limit of these times, as a multiple: they grow where most members measure that they must. "
            "A peer that is later is left out."
        ),
    ] = STRETCH
    memory_bytes: int | None = None
    data_where: Annotated[str | None, Option("Where members get the data, in words: an address, a command.")] = None
