"""`troth new`: write the manifest of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from troth.cli.fields import takes
from troth.cli.progress import telling
from troth.network.manifest.options import ManifestOptions

if TYPE_CHECKING:
    from troth.api.new import NewOptions
    from troth.network.manifest.builder import BuiltManifest, Origin
    from troth.network.manifest.manifest import Manifest


@takes(ManifestOptions)
def new(
    *,
    manifest: Annotated[Path, typer.Argument(help="The file to write, for instance run.toml.")],
    founder: Annotated[
        list[str],
        typer.Option(
            help="Who takes part, once for each: NAME=KEY@HOST:PORT. KEY is a public key in hexadecimal, or its file "
            "(alice.pub). Without @HOST:PORT it only dials out, and all others need an address.",
            show_default=False,
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(
            help="What to train: see 'troth tasks'; or your own my_task.py. Default: digits, or that of --continues."
        ),
    ] = None,
    options: dict[str, Any],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a manifest that is there already.")] = False,
) -> None:
    """Write down what the members of a run agree on: one file, to send to everybody.

    It holds what is trained, on which data, how, among whom, and how long things may take. The run's name is a digest over
    all of it, so nobody can change anything unnoticed. There is no secret in it.

    First, everybody makes a key ('troth key new me.key') and sends you its public half (me.pub). If their machines are of
    different kinds, let each run 'troth doctor --task TASK': the same class means exact audits; otherwise it recommends a
    --hardware-deviation.

    Example: troth new run.toml --task digits --founder alice=alice.pub@10.0.0.1:7001 --founder bob=bob.pub@10.0.0.2:7001
    --founder carol=carol.pub@10.0.0.3:7001 --founder dave=dave.pub
    """
    with telling("loading PyTorch"):
        import torch

        from troth.api.new import write_new

    torch.set_num_threads(1)  # as 'troth join' does unless asked otherwise: the time of a gradient is measured here
    if "continues" not in options:
        task = task or "digits"
    with telling("reading keys") as now:
        given = cast("NewOptions", options)
        built = write_new(manifest, task, founder, given, overwrite=overwrite, on_stage=now)
    _print(manifest, built)


def _print(path: Path, built: "BuiltManifest") -> None:
    from troth.network.manifest.consent import code_to_run
    from troth.network.manifest.cost import StepCost, duration
    from troth.network.manifest.manifest import Resilience

    manifest, timeouts = built.manifest, built.manifest.timeouts
    typer.echo(f"Wrote {path}: {manifest.task}, {manifest.parameters.size:,} parameters, {manifest.steps:,} steps.")
    typer.echo(f"Run {manifest.run.id.hex()[:8]}, in full {manifest.run.id.hex()}")
    if built.origin is not None:
        typer.echo("\n".join(_continuation(manifest, built.origin)))
    local_steps = built.manifest.parameters.local_steps
    work = "A gradient" if local_steps == 1 else f"{local_steps} gradients, as many as there are local steps,"
    typer.echo(f"{work} took {duration(built.gradient_s)} here; members have {timeouts.compute:g} s for it.")
    typer.echo("\n" + "\n".join([*Resilience.of(manifest.run).sentences(), *_warnings(built)]))
    typer.echo("\n" + "\n".join(StepCost.of(manifest).sentences()))
    typer.echo("\nNext: send to everybody, to put into one folder (there is no secret in it):\n")
    for line in _parcel(path, built):
        typer.echo(f"    {line}")
    typer.echo(
        f"\nEverybody then runs\n\n    troth join {path.name} --identity me.key\n\n"
        f"and must see the same run, {manifest.run.id.hex()[:8]}."
    )
    if (code := code_to_run(manifest)) is not None:
        typer.echo(f"They are asked before {code.what} is run. SHA-256, for those who ask you: {code.digest}")


def _continuation(manifest: "Manifest", origin: "Origin") -> list[str]:
    """Where the run goes on from, and everything that is not as it was there."""
    from troth.evidence.verify_model import verify_state
    from troth.network.manifest.builder import differences
    from troth.training.optimizers import rate_at

    old, proof = origin.manifest, verify_state(origin.proof)
    lines = [f"It continues run {old.run.id.hex()[:8]}: {proof.sentence()}."]
    if differ := differences(old, manifest):
        lines += ["As in that run's manifest, but for:", *(f"    {line}" for line in differ)]
    else:
        lines.append("All else is as in that run's manifest.")
    was, will_be = rate_at(old.rates(), proof.record.updates), manifest.rates()[0]
    if was != will_be:
        lines.append(f"The schedule begins anew: a learning rate of {will_be:.3g}; there it had come to {was:.3g}.")
    return lines


def _parcel(path: Path, built: "BuiltManifest") -> list[str]:
    """The files that everybody needs, one line for each."""
    from troth.network.manifest.files import initial_state_file, origin_file

    manifest = built.manifest
    lines = [path.name, *map(str, built.code)]
    if manifest.initial_state is not None:
        lines.append(initial_state_file(Path(), manifest.initial_state).name)
    if manifest.initial_state is not None and manifest.continues is not None:
        lines.append(origin_file(Path(), manifest.initial_state).name)
    if built.data and manifest.data_where:
        count = f"{len(built.data)} data file{'' if len(built.data) == 1 else 's'}"
        return [*lines, f"(the task's {count}: members get them from {manifest.data_where})"]
    here = path.parent.resolve()
    inside = [file for file in built.data if file.resolve().is_relative_to(here)]
    lines += [f"{file.resolve().relative_to(here)} (data, {_size(file)})" for file in inside]
    elsewhere = [file for file in built.data if file not in inside]
    return [*lines, *(f"{file} (data, {_size(file)}: it goes where the task looks for it)" for file in elsewhere)]


def _size(file: Path) -> str:
    size = file.stat().st_size
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size:,} bytes"


def _warnings(built: "BuiltManifest") -> list[str]:
    manifest = built.manifest
    parameters, count = manifest.parameters, len(manifest.founders)
    lines = []
    if parameters.beyond_guarantee:
        lines.append("Beyond the guarantee: with so many liars nothing is promised.")
    elif parameters.byzantine == 0:
        lines.append(
            f"No liar is withstood: that takes 4 founders and a validator; here are {count} and {parameters.validators}. "
            "The first ban, also of a machine that computes wrongly, ends the run."
        )
    hidden = [founder.name for founder in manifest.founders if not founder.address]
    if len(hidden) > 1:
        lines.append(f"{', '.join(sorted(hidden))} have no address, so they cannot reach each other: give all but one.")
    lasting = sorted(founder.name for founder in manifest.founders if founder.record_key is None)
    if parameters.probation and lasting:
        lines.append(
            f"The first record is signed with keys that stay: {', '.join(lasting)}. Whoever steals most of them one day can tell "
            "strangers another history; 'troth key records' makes keys that are erased."
        )
    if parameters.deviation is None:
        steps = "" if parameters.local_steps == 1 else f" --local-steps {parameters.local_steps}"
        lines.append(
            "Audits are exact: all members need machines of one class. "
            f"Let everybody compare what 'troth doctor --task {manifest.task} --peers {count}{steps}' shows."
        )
    return [*lines, *_about_the_optimizer(manifest)]


def _about_the_optimizer(manifest: "Manifest") -> list[str]:
    """Advice where an optimizer makes more of a small lie than SGD does (SPEC U7, D3)."""
    from troth.training.optimizers import AdamW

    optimizer, lines = manifest.make_optimizer(), list[str]()
    if not isinstance(optimizer, AdamW):
        return lines
    usual, name = type(optimizer)(), type(optimizer).__name__
    if manifest.parameters.deviation is not None:
        lines.append(
            f"Other hardware and {name}: a liar may add a little to every gradient unseen, and {name} makes more of it than SGD "
            "does. Take --optimizer sgd, or machines of one class without --hardware-deviation."
        )
    if optimizer.floor < usual.floor or optimizer.model_floor < usual.model_floor:
        lines.append(
            f"Low floors: one liar can plant a backdoor with 1 % of a gradient. Leave out floor and model_floor, which are "
            f"{usual.floor:g} and {usual.model_floor:g} unless set."
        )
    return lines
