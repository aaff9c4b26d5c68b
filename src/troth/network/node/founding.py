"""The beginning: a founder waits for the others, and decides when to begin without the rest (SPEC B5); a stranger for members."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from troth.crypto import PeerId
from troth.network.manifest.toml import ManifestError
from troth.network.neighbour import Standing
from troth.protocol.core.roster import Roster

_LOOK_EVERY_S = 0.02
_TELL_EVERY_S = 3.0
_ANSWERS_S = 8.0  # for members to say whether they reach this peer


class FoundingOutcome(Enum):
    """The outcome of a decision."""

    WAIT = auto()
    BEGIN = auto()
    RUNNING = auto()  # the others have begun, and gone on
    REFUSED = auto()  # nobody will ever train with this peer


@dataclass(frozen=True)
class FoundingDecision:
    """Whether to begin, and why."""

    outcome: FoundingOutcome
    ready: bool  # this peer could begin now, if the others say so too
    reason: str  # for people


@dataclass(frozen=True)
class Presence:
    """The other founders, as this peer sees them."""

    standings: Mapping[PeerId, Standing]  # of those that are connected
    refused: Mapping[PeerId, str]  # they refuse us, or we them, and why
    troubles: Mapping[PeerId, str]  # why others are not connected


@dataclass(frozen=True)
class FoundingConditions:
    """The part of the decision that stays the same while this peer waits."""

    me: PeerId
    roster: Roster  # of the first step
    patience_s: float  # for the founders that are missing
    restart_with: int | None
    name_of: Callable[[PeerId], str]
    lacks: str = ""  # what this peer cannot begin without, for people

    @property
    def enough(self) -> int:
        """Founders that may begin without the rest. Without liars a restart would need fewer than a step does."""
        quorum = max(self.roster.quorum, self.roster.restart_quorum)
        return quorum if self.restart_with is None else min(quorum, max(self.roster.quorum, self.restart_with))


def lacking(roster: Roster, me: PeerId, held: Collection[PeerId]) -> str:
    """What a founder cannot begin without, for people: the key that the manifest names for its first records (SPEC U6)."""
    key = roster.record_key(me)
    if key == me or key in held:
        return ""
    return (
        f"the manifest names the record key {key.hex()[:8]}… for this peer, which is not beside its key file: such a key is good "
        "for one run, and then erased. Make another with 'troth key records', and let the manifest be written anew"
    )


def decide(waited_s: float, seen: Presence, founding: FoundingConditions) -> FoundingDecision:
    """Whether to begin: everyone is there, or patience is over and as many are there as a restart needs."""
    roster, enough = founding.roster, founding.enough
    founders, mine = set(roster.members), {founding.me}
    here = founders & (seen.standings.keys() | mine)
    others = here - mine
    if (reason := _refusal(seen, founding)) is not None:
        return FoundingDecision(FoundingOutcome.REFUSED, False, reason)
    begun = {peer for peer in others if seen.standings[peer].begun}
    # More than the liars among the founders could invent.
    if sum(seen.standings[peer].step > 0 for peer in begun) > roster.liars:
        return FoundingDecision(FoundingOutcome.RUNNING, False, "the others have begun without this peer")
    complete = here == founders
    ready = complete or (len(here) >= enough and waited_s >= founding.patience_s)
    if ready and founding.lacks:
        return FoundingDecision(FoundingOutcome.REFUSED, False, founding.lacks)
    agreed = {peer for peer in others if seen.standings[peer].ready}
    all_agree = len(agreed) == len(founders) - 1
    if ready and (all_agree or (len(agreed) + 1 >= enough and (begun or not complete))):
        return FoundingDecision(FoundingOutcome.BEGIN, True, "everyone is here" if all_agree else "enough are here")
    return FoundingDecision(
        FoundingOutcome.WAIT, ready, _reason(here, agreed | mine, seen, founding, founding.patience_s - waited_s)
    )


def _refusal(seen: Presence, founding: FoundingConditions) -> str | None:
    """The reason why nobody will ever train with this peer, in the words of one of those who refuse; None if somebody may."""
    others = set(founding.roster.members) - {founding.me}
    if others & seen.standings.keys():
        return None
    refused = {peer: why for peer, why in seen.refused.items() if peer in others}
    if not refused or (len(refused) < founding.roster.quorum and refused.keys() != others):
        return None
    names = ", ".join(founding.name_of(peer) for peer in sorted(refused))
    why = next(iter(refused.values()))
    remedy = "; everybody needs the same run.toml" if "another run" in why else ""
    return f"{names} cannot train with this peer: {why}{remedy}"


def _reason(here: set[PeerId], agreed: set[PeerId], seen: Presence, founding: FoundingConditions, left_s: float) -> str:
    """Who is there, who is missing and why, and what happens then, and when."""
    founders, name = set(founding.roster.members), founding.name_of
    if here == founders:
        slow = ", ".join(name(peer) for peer in sorted(here - agreed))
        return f"all {len(founders)} founders are here; waiting for {slow or 'them'} to reach everyone too"
    missing = [f"{name(peer)} ({seen.troubles.get(peer, 'not connected')})" for peer in sorted(founders - here)]
    enough = f"{founding.enough} are needed"
    if len(here) >= founding.enough:
        enough = f"enough to begin without the others in {countdown(left_s)}"
    return f"{len(here)} of {len(founders)} founders are here, {enough}; waiting for {', '.join(missing)}"


def countdown(seconds: float) -> str:
    """Time left, for people: in few steps, since every change of a line is a line more."""
    every = 30 if seconds > 60 else 10
    return f"{max(1, math.ceil(seconds / every)) * every} s"


class MeetingNetwork(Protocol):
    """The network, as far as founders use it before they begin, and strangers before they follow the run."""

    def presence(self) -> Presence: ...

    def stand(self, standing: Standing) -> None: ...

    def ask_whether_reached(self, address: str) -> bool: ...

    def reached(self) -> Mapping[PeerId, bool | None]: ...


def _now_and_then(note: Callable[[str], None]) -> Callable[[str], None]:
    """Say one of many lines, every few seconds."""
    told = time.monotonic()

    def say(text: str) -> None:
        nonlocal told
        if (now := time.monotonic()) >= told + _TELL_EVERY_S:
            told = now
            note(text)

    return say


def begin_with_the_others(network: MeetingNetwork, founding: FoundingConditions, note: Callable[[str], None]) -> bool:
    """Wait for the beginning of the run. False if it goes on already; raises `ManifestError` if it never will with this peer."""
    started, say = time.monotonic(), _now_and_then(note)
    while True:
        decision = decide(time.monotonic() - started, network.presence(), founding)
        if decision.outcome is FoundingOutcome.REFUSED:
            raise ManifestError(decision.reason)
        if decision.outcome is FoundingOutcome.RUNNING:
            return False
        network.stand(Standing(decision.ready, False, 0))
        if decision.outcome is FoundingOutcome.BEGIN:
            network.stand(Standing(True, True, 0))
            return True
        say(decision.reason)
        time.sleep(_LOOK_EVERY_S)


def meet_members(
    network: MeetingNetwork,
    founding: FoundingConditions,
    note: Callable[[str], None],
    at: str,
    answers_s: float = _ANSWERS_S,
) -> None:
    """Wait, as a stranger, until a founder answers, and find out whether others can dial this peer `at` its address, if it has
    one. Raises `ManifestError` if nobody will ever train with this peer, or if nobody reaches it there."""
    say, founders = _now_and_then(note), set(founding.roster.members)
    while not founders & (seen := network.presence()).standings.keys():
        if (reason := _refusal(seen, founding)) is not None:
            raise ManifestError(reason)
        missing = (f"{founding.name_of(peer)} ({why})" for peer, why in sorted(seen.troubles.items()))
        say(f"no member answers yet; waiting for {', '.join(missing)}")
        time.sleep(_LOOK_EVERY_S)
    if at:
        _check_reached(network, founding, note, at, answers_s)


def _check_reached(
    network: MeetingNetwork, founding: FoundingConditions, note: Callable[[str], None], at: str, answers_s: float
) -> None:
    """One member that reached this peer is enough to go on; it takes more than may lie to stop it."""
    until, failed, open_questions = time.monotonic() + answers_s, 0, 1
    while time.monotonic() < until and (failed <= founding.roster.liars or open_questions):
        if not network.ask_whether_reached(at):  # also those that have connected meanwhile
            break
        time.sleep(_LOOK_EVERY_S)
        network.presence()  # raises if this peer is to stop
        answers = list(network.reached().values())
        failed, open_questions = answers.count(False), answers.count(None)
        if any(answers):
            note(f"others can reach this peer at {at}")
            return
    if failed > founding.roster.liars:
        raise ManifestError(
            f"the members that tried ({failed}) cannot reach this peer at {at}: let that port through your router and firewall, "
            "or give the address that others see; or give none, and this peer dials the others"
        )
    note(f"whether others can reach this peer at {at} was not checked: too few members said")


class PeerNames:
    """Names for people: a founder goes by its name under all of its keys, also successor keys with which it came back; a stranger
    by the beginning of its key. Callable from any thread."""

    def __init__(self, name_of: Callable[[PeerId], str]) -> None:
        """`name_of` knows the founders (`Manifest.name_of`)."""
        self._name_of = name_of
        self._earlier: dict[PeerId, PeerId] = {}  # by successor key, the founder's key

    def learn(self, successors: Iterable[tuple[PeerId, PeerId]]) -> None:
        """Take in who came back under which key (`Roster.successors`, oldest first)."""
        for old, new in successors:
            self._earlier[new] = self._earlier.get(old, old)

    def __call__(self, peer: PeerId) -> str:
        return self._name_of(self._earlier.get(peer, peer))
