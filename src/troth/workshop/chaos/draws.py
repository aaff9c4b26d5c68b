"""Kinds of worlds that a seed can draw. Each draw keeps its order of random numbers: equal seeds, equal plans."""

from collections.abc import Callable
from dataclasses import replace

from troth.crypto import Stream, stream
from troth.protocol.core.run import most_byzantine
from troth.workshop.attacks.broadcasts import WIRE_BEHAVIOURS
from troth.workshop.attacks.door import DOOR_LIES
from troth.workshop.chaos.plan import BEHAVIOURS, HONEST, TASKS, Cut, Departure, Network, Plan
from troth.workshop.simulation.exchange import DropOut


class Dice:
    """Small decisions. Every call takes the next numbers of the stream: the order of calls is part of what a seed means."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def pick(self, count: int) -> int:
        return int(self.stream.integers(count, 1)[0])

    def chance(self) -> float:
        return float(self.stream.uniform(1)[0])


# Classic worlds: liars within the limit, crashes or a blackout, cuts, loss and clocks.

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


# Wide worlds: classic ones with more in them: larger or longer, every lie, other models, and a promise with slack.

WIDE_ATTACKS = (
    *CLASSIC_ATTACKS,
    "covered-once",
    "covered-once:scale=edge",
    "leave",
    "reroll",
    "pad-votes:ballots=500",
    "complain",
    "block-returns",
    "strategist",
)
_LARGE = (17, 40)  # peers, in one world of twelve
_FEW_STEPS = 3  # of these
_LONG = (65, 80)  # steps, in one world of twelve
_FEW_PEERS = 6  # of these
_QUIET = TASKS[4]  # nearly without noise, for a radius that is far below the gradients
_SMALL_TAU = 1e-5
_CODED_PEERS = 30  # at most, so that everybody owns a block
CODE_ATTACKS = ("bend", "bend:share=0.9", "bend:each=true", "coarse")  # drawn where there is a code to lie about
_NIGHT = (35.0, 95.0)  # seconds


def draw_wide(seed: int, *, least_peers: int = 4, most_peers: int = 16, steps: int = 20) -> Plan:
    """Draw a classic world, some larger or longer, with every lie there is, other models and radii, and slack in b."""
    dice = Dice(stream(seed, "wide"))
    size, large = dice.pick(12), False
    if size == 0:
        least_peers, most_peers, steps, large = *_LARGE, min(steps, _FEW_STEPS), True
    elif size == 1:
        least_peers, most_peers = min(least_peers, _FEW_PEERS), min(most_peers, _FEW_PEERS)
        steps = _LONG[0] + dice.pick(_LONG[1] - _LONG[0] + 1)
    plan = draw_plan(seed, least_peers=least_peers, most_peers=most_peers, steps=steps)
    plan = with_training(dice, _with_lies(dice, _with_few_contents(_with_long_nights(plan))), large=large)
    plan = _with_codes(with_walks(with_spikes(plan)))
    most = most_byzantine(plan.peers, 1)
    if not dice.pick(10):
        return with_calls(with_crashes(dice, plan))
    if not dice.pick(8):
        return plan
    plan = replace(plan, byzantine=most)
    return _within(plan) if not plan.within and dice.pick(2) else plan


def with_spikes(plan: Plan) -> Plan:
    """In every third world with wrong gradients these are right, but for one number of any size (SPEC A7)."""
    dice = Dice(stream(plan.seed, "spikes"))  # a stream of its own: other worlds stay the same
    return plan if not plan.forge_from or dice.pick(3) else replace(plan, spikes=10.0 ** (6 + 32 * dice.chance()))


def with_walks(plan: Plan) -> Plan:
    """In every fourth world contributions are walks of a few local steps (SPEC R2)."""
    dice = Dice(stream(plan.seed, "walks"))  # a stream of its own: other worlds stay the same
    return plan if dice.pick(4) else replace(plan, local_steps=2 + dice.pick(3))


def with_calls(plan: Plan) -> Plan:
    """In every second world that may pause, a liar calls all to each next step at once (SPEC G3)."""
    dice = Dice(stream(plan.seed, "calls"))  # a stream of its own: other worlds stay the same
    if not plan.liars or not plan.crashes or dice.pick(2):
        return plan
    number = min(plan.liars)
    return replace(
        plan,
        liars={**plan.liars, number: plan.liars[number] | {AWAKE}},
        intensity={**plan.intensity, number: (1.0, plan.intensity[number][1])},
    )


def _with_long_nights(plan: Plan) -> Plan:
    """After every second blackout some stay without power for longer than the others wait by themselves (SPEC B5)."""
    dice = Dice(stream(plan.seed, "long nights"))  # a stream of its own: other worlds stay the same
    if not plan.blackout or dice.pick(2):
        return plan
    downs = {k: _NIGHT[0] + dice.chance() * (_NIGHT[1] - _NIGHT[0]) for k in plan.blackout if not dice.pick(3)}
    return replace(plan, blackout={k: replace(cut, down=downs.get(k, cut.down)) for k, cut in plan.blackout.items()})


def _with_few_contents(plan: Plan) -> Plan:
    """In every fourth world records name the content of the state only now and then, as for a large model (SPEC U5)."""
    dice = Dice(stream(plan.seed, "contents"))  # a stream of its own: other worlds stay the same
    return plan if dice.pick(4) else replace(plan, content_every=2 + dice.pick(5))


def _with_codes(plan: Plan) -> Plan:
    """In every fourth world that is not large gradients and aggregates are sent as codes (SPEC C4)."""
    dice = Dice(stream(plan.seed, "codes"))  # a stream of its own: other worlds stay the same
    return plan if dice.pick(4) else _coded(dice, plan)


def _coded(dice: Dice, plan: Plan) -> Plan:
    """In every second world liars have the attacks that codes make room for, all together in half of these; in some, those whose
    gradients are wrong lean."""
    if plan.peers > _CODED_PEERS:
        return plan
    plan, attacks = replace(plan, code="int8", task=TASKS[5 if dice.pick(3) else 6]), dict(plan.attacks)
    if dice.pick(2):
        together, attack = dice.pick(2), CODE_ATTACKS[dice.pick(len(CODE_ATTACKS))]
        for number in sorted(plan.liars):
            attacks[number] = attack if together else CODE_ATTACKS[dice.pick(len(CODE_ATTACKS))]
    leans = bool(plan.forge_from) and not plan.spikes and not plan.strangers and not dice.pick(2)
    return replace(plan, attacks=attacks, leans=leans)


def _with_lies(dice: Dice, plan: Plan) -> Plan:
    """Give any attack to half of the liars, or one to all together; some also get the later behaviours on the wire."""
    later = sorted(LATER_BEHAVIOURS)
    liars = {
        number: behaviours | {later[dice.pick(len(later))]} if not dice.pick(6) else behaviours
        for number, behaviours in plan.liars.items()
    }
    attacks = dict(plan.attacks)
    if not dice.pick(3):  # a lie that needs all of them
        attacks = dict.fromkeys(plan.liars, WIDE_ATTACKS[dice.pick(len(WIDE_ATTACKS))])
    else:
        attacks |= {number: WIDE_ATTACKS[dice.pick(len(WIDE_ATTACKS))] for number in plan.liars if dice.pick(2)}
    return replace(
        plan,
        liars=liars,
        attacks=attacks,
        waits=bool(plan.crashes) and not dice.pick(3),
        liars_return=not plan.blackout and not dice.pick(4),
    )


def with_training(dice: Dice, plan: Plan, *, large: bool) -> Plan:
    """Draw the model and the clipping radius."""
    kind = dice.pick(8)
    if large:
        task, tau = TASKS[3 if kind == 0 else 1], plan.tau
    else:
        task, tau = {0: (TASKS[2], plan.tau), 1: (_QUIET, _SMALL_TAU), 2: (TASKS[0], 0.01)}.get(
            kind, (plan.task, plan.tau)
        )
    return replace(plan, task=task, tau=tau, tau_auto=0.25 if not dice.pick(5) else None)


def _within(plan: Plan) -> Plan:
    """Keep only so many failing peers, the first of them, that the plan is within the full guarantee."""
    failing = frozenset(sorted(plan.shaky - plan.blackout.keys())[: plan.promised - len(plan.lying)])
    cuts = tuple(replace(cut, isolated=cut.isolated & failing) for cut in plan.network.cuts if cut.isolated & failing)
    loss = {number: share for number, share in plan.network.loss.items() if number in failing}
    crashes = {number: cut for number, cut in plan.crashes.items() if number in failing | plan.lying}
    return replace(plan, crashes=crashes, blackout={}, network=replace(plan.network, cuts=cuts, loss=loss))


def with_crashes(dice: Dice, plan: Plan) -> Plan:
    """Raise the liars to the limit; then honest peers lose power, for good or for a while; at least one stays."""
    most, order = most_byzantine(plan.peers, 1), dice.stream.permutation(plan.peers).tolist()
    new = [number for number in order if number not in plan.lying][: most - len(plan.lying)]
    lying = {*plan.lying, *new}
    honest = [number for number in order if number not in lying]
    attack = WIDE_ATTACKS[dice.pick(len(WIDE_ATTACKS))]
    together = dict.fromkeys(sorted(lying), attack) if dice.pick(2) else dict(plan.attacks)
    return replace(
        plan,
        liars={**plan.liars, **dict.fromkeys(new, frozenset())},
        intensity={**plan.intensity, **{number: (dice.chance() ** 2, dice.pick(plan.steps)) for number in new}},
        forge_from={number: start for number, start in plan.forge_from.items() if number in lying},
        attacks=together,
        crashes={number: _crash(dice, plan.steps) for number in honest[: 1 + dice.pick(max(1, len(honest) - 1))]},
        blackout={},
        network=replace(plan.network, cuts=(), loss={}),
        byzantine=most,
        waits=bool(dice.pick(2)),
    )


def _crash(dice: Dice, steps: int) -> DropOut:
    down = None if dice.pick(2) else 60 * dice.chance()
    return DropOut(dice.pick(steps), dice.pick(9), down, bool(dice.pick(4)), 2 * dice.chance() if dice.pick(2) else 0.0)


# Beyond the full guarantee: liars at the limit, and honest peers that crash besides. Safety alone is promised.


def draw_beyond(seed: int, *, least_peers: int = 4, most_peers: int = 16, steps: int = 20) -> Plan:
    """Draw a world with as many liars as there may be, and honest peers that crash besides."""
    dice = Dice(stream(seed, "beyond"))
    plan = draw_plan(seed, least_peers=least_peers, most_peers=most_peers, steps=steps)
    plan = with_spikes(with_crashes(dice, with_training(dice, plan, large=False)))
    isolated = Dice(stream(seed, "one by one"))  # a stream of its own: other worlds stay the same
    return with_calls(plan if isolated.pick(3) else _one_by_one(isolated, plan))


def _one_by_one(dice: Dice, plan: Plan) -> Plan:
    """Honest peers go for good, in each step as many as leave a quorum, until liars are most of the members left.

    All at once would stop the run, and a run that stops shows nothing.
    """
    honest = [k for k in dice.stream.permutation(plan.peers).tolist() if k not in plan.lying]
    stay, crashes = 1 + dice.pick(2), dict[int, DropOut]()
    for step in range(dice.pick(3), plan.steps):
        members = len(honest) + len(plan.lying)
        spare = min(members - max(members // 2 + 1, plan.promised + 1), len(honest) - stay)
        if spare < 1:
            break
        for _ in range(1 + dice.pick(spare)):
            crashes[honest.pop()] = DropOut(step, dice.pick(9), amid=2 * dice.chance() if dice.pick(2) else 0.0)
    return replace(plan, crashes=crashes or plan.crashes)


# Worlds with an open door: strangers come, go and come again, some to cheat, while liars inside mislead them and members crash,
# change their keys or lose power all at once.

_DOOR_PEERS = 8  # at most, unless more are asked for
_STEPS = 32  # at least: a stranger has to follow, wait for a draw, and work
_PROBATION = (4, 12)  # steps
_ARRIVAL = 12.0  # seconds
_MOST_STRANGERS = 4
_STAY = 90.0  # seconds until a stranger leaves, at most
_AWAY = 40.0  # seconds, at most
_REKEY_EVERY = 8  # updates, at most


def draw_door(seed: int, *, least_peers: int = 4, most_peers: int = _DOOR_PEERS, steps: int = _STEPS) -> Plan:
    """Draw a classic world, every third a wide one, and up to four strangers, of whom every second is honest."""
    dice, steps = Dice(stream(seed, "door")), max(steps, _STEPS)
    draw = draw_plan if dice.pick(3) else draw_wide
    plan = draw(seed, least_peers=least_peers, most_peers=most_peers, steps=steps)
    if plan.steps < steps:  # the large ones are over before anybody is in
        plan = draw_plan(seed, least_peers=least_peers, most_peers=most_peers, steps=steps)
    if dice.pick(2):  # a promise with slack, so that those who turn or leave do not go beyond it
        plan = replace(plan, byzantine=most_byzantine(plan.peers, 1))
    plan = _with_lies_at_the_door(dice, _with_key_changes(dice, plan))
    probation = _PROBATION[0] + dice.pick(_PROBATION[1] - _PROBATION[0] + 1)
    strangers = {
        plan.peers + number: (
            round(dice.chance() * _ARRIVAL, 3),
            HONEST if dice.pick(2) else BEHAVIOURS[1 + dice.pick(len(BEHAVIOURS) - 1)],
        )
        for number in range(1 + dice.pick(_MOST_STRANGERS))
    }
    leaves = {number: _leave(dice) for number, (_, how) in strangers.items() if how != "flood" and not dice.pick(4)}
    rekeying = Dice(stream(seed, "record keys"))
    rekey_every = 1 + rekeying.pick(_REKEY_EVERY) if rekeying.pick(2) else 0
    plan = replace(plan, probation=probation, strangers=strangers, leaves=leaves, rekey_every=rekey_every)
    plan = replace(plan, spikes=0.0, leans=False)  # strangers that lie turn their gradients around
    plan = _with_codes(with_walks(plan))
    if not Dice(stream(seed, "calm")).pick(3):
        return _door_within(_calm(plan))
    return _door_within(plan) if dice.pick(2) else plan


def _calm(plan: Plan) -> Plan:
    """Nothing fails among the founders, and one may still lie: it is the strangers' turn to go wrong, within the guarantee."""
    most = most_byzantine(plan.peers, 1)
    return replace(
        plan.with_liars(sorted(plan.lying)[: max(0, most - 1)]),
        crashes={},
        blackout={},
        network=replace(plan.network, cuts=(), loss={}),
        byzantine=most,
    )


def _with_key_changes(dice: Dice, plan: Plan) -> Plan:
    """Half of those who come back have lost what they signed, and come under successor keys (SPEC B1, B8)."""
    crashes = {number: replace(cut, journal=cut.journal and bool(dice.pick(2))) for number, cut in plan.crashes.items()}
    return replace(plan, crashes=crashes)


def _with_lies_at_the_door(dice: Dice, plan: Plan) -> Plan:
    """In three of four worlds with liars they lie at the door: each in one or two ways of its own, or all alike."""
    if not plan.liars or not dice.pick(4):
        return plan
    lies, alike, liars = sorted(DOOR_LIES), bool(dice.pick(2)), dict[int, frozenset[str]]()
    chosen = dice.stream.sample(len(lies), 1 + dice.pick(2))
    for number, behaviours in sorted(plan.liars.items()):
        chosen = chosen if alike else dice.stream.sample(len(lies), 1 + dice.pick(2))
        liars[number] = behaviours | {lies[k] for k in chosen}
    return replace(plan, liars=liars)


def _leave(dice: Dice) -> Departure:
    """At any time, or soon after it became a member; for a while, or for good; under its key or another."""
    inside = bool(dice.pick(2))
    at = dice.chance() * (20.0 if inside else _STAY)
    down = round(dice.chance() * _AWAY, 3) if dice.pick(3) else None
    return Departure(round(at, 3), down, bool(dice.pick(2)), inside)


def _door_within(plan: Plan) -> Plan:
    """As many of those who turn or leave as the promise has room for, the first of them."""
    room = max(0, plan.promised - len(plan.lying | plan.shaky))
    faulty = set(sorted(plan.turncoats | plan.leaves.keys())[:room])
    strangers = {
        number: (when, how if number in faulty or how != "turns" else HONEST)
        for number, (when, how) in plan.strangers.items()
    }
    leaves = {number: leave for number, leave in plan.leaves.items() if number in faulty}
    return replace(plan, strangers=strangers, leaves=leaves)


# Runs over slow lines: gradients are codes, or contributions walks, or both.


def draw_slow(seed: int, *, least_peers: int = 4, most_peers: int = 16, steps: int = 20) -> Plan:
    """Draw a wide world, or every third at the door; half of them have codes and local steps, the others one of the two."""
    dice = Dice(stream(seed, "slow lines"))
    door, kind = not dice.pick(3), dice.pick(4)
    if door:
        plan = draw_door(
            seed, least_peers=min(least_peers, _DOOR_PEERS), most_peers=min(most_peers, _DOOR_PEERS), steps=steps
        )
    else:
        plan = draw_wide(seed, least_peers=least_peers, most_peers=most_peers, steps=steps)
    if (kind != 0 or plan.peers > _CODED_PEERS) and plan.local_steps == 1:
        plan = replace(plan, local_steps=2 + dice.pick(3))
    return plan if kind == 1 or plan.code != Plan.code else _coded(dice, plan)


DRAWS: dict[str, Callable[..., Plan]] = {
    "classic": draw_plan,
    "wide": draw_wide,
    "beyond": draw_beyond,
    "door": draw_door,
    "slow": draw_slow,
}
