"""Classic worlds: liars within the limit, crashes or a blackout, cuts, loss and clocks."""

from troth.attacks.wire.behaviours import WIRE_BEHAVIOURS
from troth.crypto import stream
from troth.protocol.core.run import most_byzantine
from troth.simulation.chaos.draws.dice import Dice
from troth.simulation.chaos.faults import Cut, Network
from troth.simulation.chaos.plan import Plan
from troth.simulation.lockstep.drop_outs import DropOut

CLASSIC_ATTACKS = (
    "wrong-aggregate",
    "wrong-aggregate:border=true",
    "wrong-report",
    "false-accusation",
    "mass-accusation",
    "silent-validation",
    "lying-jury",
    "withheld-aggregate",
    "vanish:after=reveal",
    "grind",
    "covered-aggregate",
    "adapt",
)
# Added later, and drawn by `draw_wide` only: so the seeds of classic worlds still mean the same worlds.
LATER_BEHAVIOURS = frozenset({"hoard-signatures", "flood"})
AWAKE = "awake"  # of liars of worlds that may pause; drawn from a stream of its own


def draw_plan(seed: int, *, least_peers: int = 4, most_peers: int = 16, steps: int = 20) -> Plan:
    """Draw a classic world."""
    dice = Dice(stream(seed, "chaos"))
    peers = least_peers + dice.pick(most_peers - least_peers + 1)
    together = not dice.pick(8)  # as many as may be: for a lie that needs the signatures of all liars
    byzantine = most_byzantine(peers, 1) if together else dice.pick(most_byzantine(peers, 1) + 1)
    order = dice.stream.permutation(peers).tolist()
    lying, honest = order[:byzantine], order[byzantine:]
    crashes, loss, cuts = _draw_failures(dice, honest, peers, steps)
    names = [name for name in WIRE_BEHAVIOURS if name not in LATER_BEHAVIOURS | {AWAKE}]
    liars = {number: frozenset(names[k] for k in dice.stream.sample(len(names), dice.pick(5))) for number in lying}
    attacks = {number: CLASSIC_ATTACKS[dice.pick(len(CLASSIC_ATTACKS))] for number in lying if dice.pick(2)}
    if together:
        liars = {number: frozenset({"late-certificate"} if number == lying[0] else ()) for number in lying}
        attacks = {}
    if not dice.pick(3):  # all liars mislead members that were gone, and claim their places
        liars = {number: behaviours | {"mislead", "false-rejoin"} for number, behaviours in liars.items()}
    forge_from = {number: dice.pick(steps) for number in lying if dice.pick(2)}
    intensity = {number: (dice.chance() ** 2, dice.pick(steps)) for number in lying}
    network = _draw_network(dice, peers, honest, loss, cuts)
    blackout = {} if crashes or loss or cuts else _draw_blackout(seed, honest, steps)
    confirmed = 30.0 + 90 * float(stream(seed, "people").uniform(1)[0])
    return Plan(seed, peers, steps, liars, forge_from, attacks, intensity, crashes, network, blackout, confirmed)


def _draw_blackout(seed: int, honest: list[int], steps: int) -> dict[int, DropOut]:
    """Power cuts of all honest peers within one step, in every second world.

    Each peer has a moment of its own; or power goes for all while they sign the step's record with the next Commit, so
    that some hold it certified and others do not.
    """
    draw, count = stream(seed, "blackout"), len(honest)
    if draw.integers(2, 1)[0]:
        return {}
    step, late = int(draw.integers(max(1, steps // 2), 1)[0]), bool(draw.integers(2, 1)[0])
    calls = [0] * count if late else draw.integers(9, count).tolist()
    downs, amid = (20 * draw.uniform(count)).tolist(), ((1 if late else 2) * draw.uniform(count)).tolist()
    return {honest[k]: DropOut(step + late, calls[k], downs[k], True, amid[k]) for k in range(count)}


def _draw_failures(
    dice: Dice, honest: list[int], peers: int, steps: int
) -> tuple[dict[int, DropOut], dict[int, float], list[Cut]]:
    """Power cuts, shares of lost packets, and cuts of the network."""
    crashes: dict[int, DropOut] = {}
    loss: dict[int, float] = {}
    cuts: list[Cut] = []
    pick, chance, byzantine = dice.pick, dice.chance, peers - len(honest)

    def amid() -> float:
        return 2 * chance() if pick(2) else 0.0

    if pick(2):  # some go for good, as many as leave the honest in the majority of contributors
        spare = max(1, len(honest) - byzantine - 1)
        crashes = {number: DropOut(pick(steps), pick(9), amid=amid()) for number in honest[: pick(spare)]}
    elif pick(3):  # some fail for a while: with the liars fewer than half, so that nobody goes on without the rest
        for number in honest[: max(0, (peers - 1) // 2 - byzantine)]:
            match pick(4):
                case 0 | 1:
                    crashes[number] = DropOut(pick(steps), pick(9), chance() ** 2 * 100, bool(pick(2)), amid())
                case 2:
                    start, length = chance() * 8 * steps, 1 + chance() ** 2 * 80
                    isolated = frozenset({number, *(cuts[-1].isolated if cuts and pick(2) else ())})
                    cuts.append(Cut(isolated, start, start + length))
                case _:
                    loss[number] = 0.5 * chance() ** 2
    return crashes, loss, cuts


def _draw_network(dice: Dice, peers: int, honest: list[int], loss: dict[int, float], cuts: list[Cut]) -> Network:
    pick, chance = dice.pick, dice.chance
    share = (0.05 + 0.85 * chance()) * (0.5 if (narrow := not pick(3)) else 1.0)
    links = chance() if pick(2) else 0.0
    return Network(
        latency=share * (1 - links),
        links=share * links,
        duplicated=0.2 * chance() if not pick(3) else 0.0,
        bytes_per_second=(2 + 4 * chance()) * 1e6 if narrow else None,
        loss=loss,
        cuts=tuple(cuts),
        clocks={number: (1000 * chance(), 1e-3 * (chance() - 0.5)) for number in range(peers)} if not pick(3) else {},
        slow={number: 0.9 * chance() for number in honest if not pick(4)} if not pick(3) else {},
    )
