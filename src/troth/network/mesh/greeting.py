"""The check of a greeting: whether a peer that says hello belongs to this run, and may sit where it says."""

from collections.abc import Set

from troth.crypto import Digest, PeerId, Signature, verify
from troth.network.mesh.session import (
    CONTROL_SESSION,
    VERSION,
    Hello,
    Refused,
    decode_session_message,
    delegation_bytes,
)
from troth.network.transport.base import Lane, Received

FIRST_MODEL, HARDWARE = "first model", "hardware class"  # sections that each machine computes, beside the manifest's
_MOST_SHOWN = 140  # two of them fit into a refusal, beside the advice

_ADVICE = {
    FIRST_MODEL: "its first model is another than this peer's: compare the versions of PyTorch and of what the task imports, or "
    "begin with a file of weights (troth new --from)",
    HARDWARE: "its machine computes other bits than this one, and audits in this run are exact: compare versions, threads and "
    "'troth doctor', or agree on a manifest with --hardware-deviation",
}


def check_greeting(
    heard: tuple[Lane, Received],
    peer: PeerId,
    mine: Hello,
    members: Set[PeerId],
    banned: Set[PeerId],
    *,
    strangers: bool = False,
) -> Hello | str:
    """The greeting of `peer`, which said this first; or why its connection is refused. `strangers`: the run's door is open, and
    any key may come."""
    lane, raw = heard
    said = (
        decode_session_message(bytes(raw[1:])) if lane == Lane.CONTROL and bytes(raw[:1]) == CONTROL_SESSION else None
    )
    if isinstance(said, Refused):
        return f"it refuses this peer: {said.why}"
    if not isinstance(said, Hello):
        return "it did not say hello"
    if said.version != VERSION:
        return f"it speaks version {said.version} of the session, and this peer {VERSION}"
    if said.run != mine.run:
        theirs = {**said.sections, **{name: mine.sections.get(name) for name in _ADVICE}}
        differing = [name for name in mine.sections if mine.sections[name] != theirs.get(name)]
        return f"another run: the manifests differ in {', '.join(differing) or 'founders or nonce'}"
    member = PeerId(said.member)
    if member not in members and not strangers:
        return "its key is not in this run"
    if {member, peer} & banned:
        return "it is banned from this run"
    # Only the owner of a seat can hand it on: else anybody could make a key and take a seat.
    if member != peer and not _delegated(said, member, peer, Digest(mine.run)):
        return "it claims a seat that is not its own"
    # Else an honest peer with another version of a library would be banned for what it computes.
    wrong = (name for name in _ADVICE if said.sections.get(name) != mine.sections.get(name))
    differing_in = next(wrong, None)
    if differing_in is None:
        return said
    machines = f" (its machine: {_shown(said.machine)}; this one: {_shown(mine.machine)})"
    return _ADVICE[differing_in] + (machines if said.machine and mine.machine else "")


def _shown(text: str) -> str:
    """A stranger's line as a log may hold it: short, and without anything that moves a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MOST_SHOWN])


def _delegated(said: Hello, member: PeerId, successor: PeerId, run: Digest) -> bool:
    return said.delegation is not None and verify(member, delegation_bytes(run, successor), Signature(said.delegation))
