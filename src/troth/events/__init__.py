"""One stream of events for everything that watches a run: a live member, a swarm and a simulation tell the same."""

from troth.events.kinds import (
    Audit,
    Ban,
    Began,
    Candidate,
    Ended,
    Event,
    KnownPeer,
    Link,
    Noted,
    PhaseTime,
    Returned,
    Status,
    Stepped,
    Trial,
    Work,
)

__all__ = [
    "Audit",
    "Ban",
    "Began",
    "Candidate",
    "Ended",
    "Event",
    "KnownPeer",
    "Link",
    "Noted",
    "PhaseTime",
    "Returned",
    "Status",
    "Stepped",
    "Trial",
    "Work",
]
