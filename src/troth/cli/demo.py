"""`troth demo`: a swarm under attack on this machine, with its report."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the summaries and the picture.")] = Path("runs/demo"),
) -> None:
    """16 peers learn to read digits, 7 of them lie: the plain mean against CenteredClip against no attack."""
    typer.echo("16 peers train one model on handwritten digits. From step 50 on, 7 of them send gradients times −1000.")
    typer.echo("Starting …", err=True)

    from troth.cli.live import Live
    from troth.cli.output import claim
    from troth.evidence import write_text
    from troth.lab import plot_runs
    from troth.lab.comparison import contenders
    from troth.simulation import Scenario, simulate

    folder = claim(out, {}, overwrite=True)
    scenario = Scenario(byzantine=7, attack="sign-flip", attack_start=50, steps=300, seed=seed)
    runs = []
    for label, contender in contenders(scenario, ("mean", "centered-clip")).items():
        with Live(f"{label:<28}", contender.total_steps, contender.peers) as live:
            summary = simulate(contender, live.step)
        write_text(folder / f"{label.replace(', ', '-').replace(' ', '-')}.json", summary.to_json())
        typer.echo(f"  {label:<28} {summary.metrics['accuracy']:>6.1%} of the test digits right")
        runs.append((label, summary))
    picture = folder / "demo.png"
    plot_runs(runs, picture, "16 peers, 7 of them liars: digits read correctly")
    calm, mean, clipped = (summary.metrics["accuracy"] for _, summary in runs)
    typer.echo(f"\nPicture: {picture}")
    typer.echo(
        f"Averaging everyone's gradients lets seven liars ruin the model ({mean:.0%} instead of {calm:.0%}); clipping "
        f"what each peer can change keeps it useful ({clipped:.0%}), but the liars stay, and a server must be trusted."
    )
