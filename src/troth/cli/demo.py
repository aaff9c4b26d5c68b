"""`troth demo`: a swarm of real processes under attack on this machine, on its page."""

import time
from pathlib import Path
from typing import Annotated

import typer

from troth.cli.watch import HOST, PageHost, PageOptions, PagePort, offer_to_open, stay_up

_PEERS, _LIARS, _START = 8, 3, 30


def demo(
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    steps: Annotated[int, typer.Option(help="How many steps to train.")] = 200,
    out: Annotated[Path, typer.Option(help="Folder for summaries, picture and evidence.")] = Path("runs/demo"),
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="Show the swarm on a web page of this machine.")
    ] = True,
    page_port: PagePort = None,
    page_host: PageHost = HOST,
) -> None:
    """8 processes learn to read digits together, 3 of them lie: Troth, next to plain averaging, on a web page and here."""
    started = time.monotonic()
    typer.echo(f"{_PEERS} peers train one model on handwritten digits.")
    typer.echo(f"From step {_START} on, {_LIARS} of them send their gradients times −1000.")
    typer.echo("Starting …", err=True)

    from troth.api.steps import use_threads
    from troth.files import claim

    use_threads(1)
    folder = claim(out, {}, overwrite=True)
    with PageOptions(page, page_host, page_port, optional=True, stays=False).of(folder, new=True) as address:
        if address:
            offer_to_open(address)
        _play(folder, seed, steps, started)
        if address:
            stay_up(address)


def _play(folder: Path, seed: int, steps: int, started: float) -> None:
    from troth.cli.progress import Live
    from troth.cli.swarm import play
    from troth.evidence.verify import verify_ban
    from troth.files import write_text
    from troth.workshop.lab.plots import plot_runs
    from troth.workshop.lab.sweep_file import contenders
    from troth.workshop.simulation import Scenario, simulate
    from troth.workshop.swarm_peers import SwarmPlan, rehearsal

    typer.echo(
        f"  Troth: {_PEERS} processes on this machine, each with a key, a journal and TLS connections to all others"
    )
    plan = SwarmPlan(_PEERS, _LIARS, ("sign-flip",), attack_start=_START, seed=seed)
    swarm, protocol = play(plan, rehearsal(plan, steps=steps), folder)
    write_text(folder / "summary.json", protocol.to_json())
    typer.echo(f"  {'Troth, attacked':<28} {protocol.metrics['accuracy']:>6.1%} of the test digits right")
    scenario = Scenario(peers=_PEERS, byzantine=_LIARS, attack="sign-flip", attack_start=_START, steps=steps, seed=seed)
    runs = []
    for label, contender in contenders(scenario, ("mean",)).items():
        with Live(f"{label:<28}", contender.total_steps, contender.peers) as live:
            summary = simulate(contender, live.step).summary
        write_text(folder / f"{label.replace(', ', '-').replace(' ', '-')}.json", summary.to_json())
        typer.echo(f"  {label:<28} {summary.metrics['accuracy']:>6.1%} of the test digits right")
        runs.append((label, summary))
    runs.append(("Troth, attacked", protocol))
    picture = folder / "demo.png"
    plot_runs(runs, picture, f"{_PEERS} peers, {_LIARS} of them liars: digits read correctly")
    files = sorted(swarm.evidence_folder().glob("ban-*.json"))
    proved = sum(bool(verify_ban(file.read_text(encoding="utf-8"), swarm.manifest.run.id)) for file in files)
    calm, mean, troth = (summary.metrics["accuracy"] for _, summary in runs)
    caught = len({ban["peer"] for ban in protocol.details["banned"]} & set(protocol.byzantine))
    typer.echo(f"\nPicture:  {picture}")
    typer.echo(f"Evidence: {swarm.evidence_folder()}: {proved} of {len(files)} files verify")
    typer.echo(f"          (try: troth verify {folder / 'peer0'} --run {folder / 'run.toml'})")
    typer.echo(f"Time:     {time.monotonic() - started:.0f} s")
    harmed = protocol.details["honest_banned"]
    typer.echo(
        f"\nAveraging lets {_LIARS} liars ruin the model ({mean:.0%} instead of {calm:.0%}). With Troth nobody is trusted: "
        f"{caught} of the {_LIARS} were caught by recomputing and banned, {harmed} honest peers were, "
        f"and the model reads {troth:.0%}."
    )
