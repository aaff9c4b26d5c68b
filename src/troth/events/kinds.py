"""The events of a run, version 1. `docs/events.md` describes them for those who read the files with other programs.

A stream is a line of JSON for each event. It begins with `Began`; a member that came back goes on in its file with another one.
Peers go by their names, which are unique in a run. Nothing here is a protocol object, and nothing has to be believed: evidence
files prove, events tell.
"""

from typing import Any, Literal

import msgspec

VERSION = 1

Source = Literal["member", "swarm", "simulation"]
Verdict = Literal["accused", "accuser", "withheld", "dismissed"]  # which side is guilty; or one that showed too little
Ballot = Literal["accused", "accuser", "withheld"]
How = Literal["over", "stopped", "out", "error"]
Doing = Literal["meeting", "training", "waiting", "paused", "over", "stopped", "out", "error"]


class KnownPeer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A peer that the run begins with, or that came through the door."""

    name: str
    key: str = ""  # hexadecimal; empty with a trusted server, who knows no keys
    founder: bool = True
    liar: bool = False  # where that is known: in simulations and rehearsals


class Audit(msgspec.Struct, frozen=True, array_like=True):
    """One peer recomputes what another did in a step."""

    auditor: str
    target: str
    step: int  # whose work is recomputed


class Work(msgspec.Struct, frozen=True, array_like=True):
    """One peer's work of one step."""

    peer: str
    step: int


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stranger on probation, after the step."""

    name: str
    worked: int  # steps in which it committed to a gradient
    missed: int = 0
    needed: int = 0  # steps to work until it is a member


class PhaseTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One announcement of a step, as this member saw it; seconds since the step began."""

    phase: str
    began: float
    ended: float
    attempt: int = 0
    last: tuple[str, ...] = ()  # who was heard last, where the others had to be waited for


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An accusation, and how it ended."""

    kind: str  # gradient, report, aggregate, …
    target: str
    step: int  # whose work was disputed
    verdict: Verdict
    accuser: str | None = None  # None where everybody saw it
    also: tuple[str, ...] = ()  # others who accused it of the same, with the same end
    part: int | None = None
    attempt: int = 0
    banned: str | None = None
    votes: dict[str, Ballot] = {}  # those who are not named could not judge, or were not heard
    quorum: int = 0  # votes that decide
    story: tuple[str, ...] = ()  # what was claimed, what was recomputed, how it ended: sentences for people
    evidence: str = ""  # name of the file that proves the ban


class Ban(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A peer is out, for good."""

    peer: str
    reason: str
    evidence: str = ""  # name of the file that proves it


class Returned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A peer that is a member again."""

    peer: str
    key: str = ""  # the beginning of its new key, if it has one


# Events


class Began(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="began", tag_field="event"):
    """What a watcher must know before the first step."""

    source: Source
    of: int  # updates of the whole run
    peers: tuple[KnownPeer, ...]
    version: int = VERSION
    run: str = ""  # its id, hexadecimal
    name: str = ""
    task: str = ""
    defence: str = "troth"
    me: str = ""  # the member that tells this
    withstands: int | None = None  # liars at the beginning; None with a trusted server, which promises nothing
    quorum: int = 0
    validators: int = 0
    probation: int = 0  # steps that strangers work before they are members; 0: the door is closed
    exact: bool = True  # audits compare bits; else they allow for other hardware
    least_delta_s: float = 0.0  # the agreed bound on delays begins with this
    manifest: str = ""  # file that `troth verify --run` takes
    evidence: str = ""  # folder of the evidence files; both as they are called where the run was begun
    at: float | None = None  # Unix time

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"events of version {self.version}: this Troth reads version {VERSION}")


class Stepped(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="step", tag_field="event"):
    """One step has ended. Members that are neither validators nor named in `silent` contributed a gradient."""

    step: int  # as records and evidence count it, from 0
    updates: int  # of the model so far
    of: int  # updates of the whole run
    members: int  # after this step
    loss: float | None = None  # of a member: its own last batch; in a simulation: mean over the honest; None: unknown
    metrics: dict[str, float] = {}  # of the model, in steps in which it was evaluated
    moved: bool = True  # whether the model did
    withstands: int | None = None  # liars among the members after this step
    quorum: int = 0
    seconds: float | None = None  # that this step took; None: unknown
    at: float | None = None  # Unix time of its end
    attacked: bool = False  # in simulations: whether the liars attacked
    attempts: int = 1
    # Who did what
    validators: tuple[str, ...] = ()  # who contributed nothing and audited
    audits: tuple[Audit, ...] = ()  # as they were dealt
    unaudited: tuple[Work, ...] = ()  # of their targets: came to nothing, or is to be audited again
    silent: tuple[str, ...] = ()  # members that contributed nothing, and were no validators
    owners: tuple[str, ...] = ()  # by part, as drawn; where one fails, the next takes over
    trials: tuple[Trial, ...] = ()
    # Who came and went
    banned: tuple[Ban, ...] = ()
    left: tuple[str, ...] = ()  # without a ban; they may come back
    expelled: tuple[str, ...] = ()  # without a ban; they may not come back
    link_disputes: tuple[
        tuple[str, str], ...
    ] = ()  # new ones: pairs that do not hear each other, by the word of one of them
    returned: tuple[Returned, ...] = ()
    joined: tuple[str, ...] = ()  # strangers that are members from now on
    candidates: tuple[Candidate, ...] = ()
    news: tuple[str, ...] = ()  # in simulations, of the door and of gradients that are not finite: sentences
    # The step's course
    phases: tuple[PhaseTime, ...] = ()
    own_audits: int = 0  # that this peer made
    control_bytes: int = 0  # received so far
    bulk_bytes: int = 0  # received so far
    sent_bytes: int = 0  # so far, with their framing
    received_per_parameter: float | None = None  # bytes, a parameter and gradient of the last steps; None: unknown
    sent_per_parameter: float | None = None
    delta_s: float = 0.0  # the agreed bound on the delay of a message between honest peers
    least_delta_s: float = 0.0
    away: tuple[str, ...] = ()  # members once, not banned: they may come back
    ever: int = 0  # members that the run ever had
    needed: int = 0  # members without whom the model does not move
    unjudged: bool = False  # the model did not move, since no quorum judged an aggregate
    observed: bool = False  # the member that tells this took no part
    closing: bool = False  # the run's last step, in which everyone audits the one before
    restarted: bool = False  # the run went on with this step after too many had stopped


class Noted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="note", tag_field="event"):
    """A line for people."""

    text: str
    at: float | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ended", tag_field="event"):
    """The stream ends: the run is over, or the one who told it stopped, is out, or failed."""

    how: How
    text: str = ""
    at: float | None = None


Event = Began | Stepped | Noted | Ended


# The present, which is not kept: status.json in a member's folder


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The connection to another peer."""

    peer: str
    connected: bool
    received_bytes: int = 0
    sent_bytes: int = 0
    latency_s: float | None = None  # from asking to answer, newest measure
    timeouts: int = 0  # announcements in which this peer was waited for in vain
    heard_last: int = 0  # announcements in which it was heard last, and waited for
    late_s: float | None = None  # how long it was waited for in these, on average
    lost: int = 0  # times that the connection was lost
    trouble: str = ""  # why it is not connected


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a member is doing now, rewritten about every second."""

    doing: Doing
    at: float  # Unix time
    started_at: float
    version: int = VERSION
    run: str = ""
    name: str = ""
    me: str = ""
    pid: int = 0
    step: int = 0  # that it is in
    updates: int = 0
    of: int = 0
    phase: str = ""  # of the step that it is in
    attempt: int = 0
    unheard: tuple[str, ...] = ()  # members that have not spoken in that phase
    waits_for: str = ""  # why nothing happens, in words
    since: float | None = None  # Unix time since when the model has not moved; None while it trains
    left_s: float | None = None  # estimated time to the end of the run; None while it does not train
    members: int = 0
    withstands: int | None = None
    quorum: int = 0
    loss: float | None = None
    metrics: dict[str, float] = {}
    seconds: float | None = None  # of the last step
    stepped_at: float | None = None  # Unix time of the last step's end
    delta_s: float = 0.0
    received_bytes: int = 0  # with their framing
    sent_bytes: int = 0
    received_per_parameter: float | None = None  # bytes, a parameter and gradient of the last steps; None: unknown
    sent_per_parameter: float | None = None
    memory_bytes: int = 0  # of this process
    links: tuple[Link, ...] = ()
    text: str = ""  # how it ended, in words


def present_after(last: Stepped) -> dict[str, Any]:
    """What the last step tells about the present: fields of a `Status`."""
    same: tuple[str, ...] = ("updates", "members", "withstands", "quorum", "loss", "seconds", "delta_s")
    same += ("received_per_parameter", "sent_per_parameter")
    return {name: getattr(last, name) for name in same} | {"step": last.step + 1, "stepped_at": last.at}
