"""`troth demo`: a swarm under attack on this machine, with its report."""

import time
from pathlib import Path
from typing import Annotated

import typer


def demo(
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for summaries, picture and evidence.")] = Path("runs/demo"),
) -> None:
    """16 peers learn to read digits, 7 of them lie: Troth against the mean and against CenteredClip with a server."""
    started = time.monotonic()
    typer.echo("16 peers train one model on handwritten digits. From step 50 on, 7 of them send gradients times −1000.")
    typer.echo("Starting …", err=True)

    from troth.cli.live import Live
    from troth.cli.output import claim, write_evidence
    from troth.evidence import write_text
    from troth.lab import plot_runs
    from troth.lab.comparison import contenders
    from troth.simulation import TROTH, Scenario, simulate

    folder = claim(out, {}, overwrite=True)
    scenario = Scenario(byzantine=7, attack="sign-flip", attack_start=50, steps=400, seed=seed)
    runs = []
    for label, contender in contenders(scenario, ("mean", "centered-clip", TROTH)).items():
        with Live(f"{label:<28}", contender.total_steps, contender.peers) as live:
            finished = simulate(contender, live.step)
        summary = finished.summary
        write_text(folder / f"{label.replace(', ', '-').replace(' ', '-')}.json", summary.to_json())
        write_evidence(folder, finished.evidence)
        typer.echo(f"  {label:<28} {summary.metrics['accuracy']:>6.1%} of the test digits right")
        runs.append((label, summary))
    picture = folder / "demo.png"
    plot_runs(runs, picture, "16 peers, 7 of them liars: digits read correctly")
    calm, mean, clipped, troth = (summary.metrics["accuracy"] for _, summary in runs)
    protocol = runs[-1][1]
    banned = {ban["peer"] for ban in protocol.details["banned"]}
    typer.echo(f"\nPicture:  {picture}")
    typer.echo(f"Evidence: {folder / 'evidence'} (check one with: troth verify FILE)")
    typer.echo(f"Time:     {time.monotonic() - started:.0f} s")
    caught, harmed = len(banned & set(protocol.byzantine)), protocol.details["honest_banned"]
    typer.echo(
        f"\nAveraging lets seven liars ruin the model ({mean:.0%} instead of {calm:.0%}). A trusted server that clips "
        f"keeps it useful ({clipped:.0%}), but the liars stay. With Troth nobody is trusted: {caught} of the 7 were caught by "
        f"recomputing and banned, {harmed} honest peers were, and the model reads {troth:.0%}."
    )
