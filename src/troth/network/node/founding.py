"""The beginning of a run: wait for the other founders, and decide when to begin without the rest (SPEC B5)."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from troth.crypto import PeerId
from troth.network.manifest.errors import ManifestError
from troth.network.mesh.session import Standing
from troth.protocol.core.roster import Roster

_LOOK_EVERY_S = 0.02
_TELL_EVERY_S = 3.0


class Verdict(Enum):
    """The outcome of a decision."""

    WAIT = auto()
    BEGIN = auto()
    RUNNING = auto()  # the others have begun, and gone on
    REFUSED = auto()  # nobody will ever train with this peer


@dataclass(frozen=True)
class Decision:
    """A verdict with its reason."""

    verdict: Verdict
    ready: bool  # this peer could begin now, if the others say so too
    reason: str  # for people


@dataclass(frozen=True)
class Presence:
    """The other founders, as this peer sees them."""

    standings: Mapping[PeerId, Standing]  # of those that are connected
    refused: Mapping[PeerId, str]  # they refuse us, or we them, and why
    troubles: Mapping[PeerId, str]  # why others are not connected


@dataclass(frozen=True)
class Founding:
    """The part of the decision that stays the same while this peer waits."""

    me: PeerId
    roster: Roster  # of the first step
    patience_s: float  # for the founders that are missing
    restart_with: int | None
    name_of: Callable[[PeerId], str]

    @property
    def enough(self) -> int:
        """Founders that may begin without the rest. Without liars a restart would need fewer than a step does."""
        quorum = max(self.roster.quorum, self.roster.restart_quorum)
        return quorum if self.restart_with is None else min(quorum, max(self.roster.quorum, self.restart_with))


def decide(waited_s: float, seen: Presence, founding: Founding) -> Decision:
    """Whether to begin: everyone is there, or patience is over and as many are there as a restart needs."""
    roster, enough = founding.roster, founding.enough
    founders, mine = set(roster.members), {founding.me}
    here = founders & (seen.standings.keys() | mine)
    others = here - mine
    refused = {peer: why for peer, why in seen.refused.items() if peer in founders - here}
    if refused and not others and (len(refused) >= roster.quorum or refused.keys() == founders - mine):
        names = ", ".join(founding.name_of(peer) for peer in sorted(refused))
        why = next(iter(refused.values()))
        remedy = "; everybody needs the same run.toml" if "another run" in why else ""
        reason = f"{names} cannot train with this peer: {why}{remedy}"
        return Decision(Verdict.REFUSED, False, reason)
    begun = {peer for peer in others if seen.standings[peer].begun}
    # More than the liars among the founders could invent.
    if sum(seen.standings[peer].step > 0 for peer in begun) > roster.liars:
        return Decision(Verdict.RUNNING, False, "the others have begun without this peer")
    complete = here == founders
    ready = complete or (len(here) >= enough and waited_s >= founding.patience_s)
    agreed = {peer for peer in others if seen.standings[peer].ready}
    all_agree = len(agreed) == len(founders) - 1
    if ready and (all_agree or (len(agreed) + 1 >= enough and (begun or not complete))):
        return Decision(Verdict.BEGIN, True, "everyone is here" if all_agree else "enough are here")
    return Decision(Verdict.WAIT, ready, _reason(here, agreed | mine, seen, founding))


def _reason(here: set[PeerId], agreed: set[PeerId], seen: Presence, founding: Founding) -> str:
    """Who is there, who is missing and why, and what happens then; the same words while nothing changes."""
    founders, name = set(founding.roster.members), founding.name_of
    if here == founders:
        slow = ", ".join(name(peer) for peer in sorted(here - agreed))
        return f"all {len(founders)} founders are here; waiting for {slow or 'them'} to be ready"
    missing = [f"{name(peer)} ({seen.troubles.get(peer, 'not connected')})" for peer in sorted(founders - here)]
    enough = f"{founding.enough} are needed"
    if len(here) >= founding.enough:
        enough = f"enough to begin without the others after {founding.patience_s:g} s"
    return f"{len(here)} of {len(founders)} founders are here, {enough}; waiting for {', '.join(missing)}"


class FoundingNetwork(Protocol):
    """The network, as far as founding uses it."""

    def presence(self) -> Presence: ...

    def stand(self, standing: Standing) -> None: ...


def begin_with_the_others(network: FoundingNetwork, founding: Founding, note: Callable[[str], None]) -> bool:
    """Wait for the beginning of the run. False if it goes on already; raises `ManifestError` if it never will with this peer."""
    started = told = time.monotonic()
    while True:
        now = time.monotonic()
        decision = decide(now - started, network.presence(), founding)
        if decision.verdict is Verdict.REFUSED:
            raise ManifestError(decision.reason)
        if decision.verdict is Verdict.RUNNING:
            return False
        network.stand(Standing(decision.ready, False, 0))
        if decision.verdict is Verdict.BEGIN:
            network.stand(Standing(True, True, 0))
            return True
        if now >= told + _TELL_EVERY_S:
            told = now
            note(decision.reason)
        time.sleep(_LOOK_EVERY_S)
