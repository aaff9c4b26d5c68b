"""A peer's network: a transport and the connections of a mesh, in a thread of their own, and the protocol's link to them."""

from collections.abc import Callable, Mapping

from troth.crypto import CHUNK_BYTES, Digest, Identity, PeerId
from troth.events.kinds import Link
from troth.network.link import NetworkLink
from troth.network.manifest.manifest import Manifest
from troth.network.mesh import Inbox, Mesh, StoppedError
from troth.network.neighbour import VERSION, ExpectedConnections, Hello, Standing, delegation_bytes
from troth.network.node.founding import Presence
from troth.network.node.options import NodeOptions
from troth.network.node.telling import Course, Traffic
from troth.network.transport.base import Lane, LocalPeer, TransportLimits
from troth.protocol.core.roster import Roster

_MOST_CONTROL_BYTES = 1 << 25  # a peer that comes back is told everyone's announcements and the records of many steps


class NodeNetwork:
    """Open from its construction to `close`. Raises what keeps this peer from listening."""

    def __init__(
        self,
        manifest: Manifest,
        seat: Identity,
        me: Identity,
        options: NodeOptions,
        note: Callable[[str], None],
        process: bytes,
        own_sections: Mapping[str, Digest],
        machine: str,
    ) -> None:
        """`seat` is the key in the manifest; `me` is the same, or the successor that it delegates to. `process`: 32 random
        bytes, the same for as long as the process runs. `own_sections`: digests of what this machine computes; `machine`: its
        description for people."""
        limits = limits_for(manifest.run.parameters.size, options.bytes_per_second)
        inbox = self._inbox = Inbox(room=4 * limits.most_bulk_bytes + (1 << 22))
        delegation = None if me is seat else seat.sign(delegation_bytes(manifest.run.id, me.peer))
        sections: dict[str, bytes] = {**manifest.digests(), **own_sections}
        hello = Hello(VERSION, manifest.run.id, sections, seat.peer, delegation, process, machine)
        self._founders = {one.key: options.addresses.get(one.key, one.address) for one in manifest.founders}
        self._lookup = options.transport.lookup_address
        self._belonging = frozenset(self._founders)  # members and candidates
        addresses = {founder: address or self._lookup for founder, address in self._founders.items()}
        known = {founder: address for founder, address in self._founders.items() if address}
        local = LocalPeer(me, limits, manifest.run.id, lambda peer: peer in self._belonging, known)

        async def make_mesh() -> Mesh:
            transport = options.transport.make(local)
            here = await transport.listen(options.listen)
            if options.transport.tells_address:
                note(f"listening on {here}")
            return Mesh(
                transport,
                hello,
                me.peer,
                addresses,
                inbox,
                hold_s=manifest.timeouts.delta,
                liars=manifest.parameters.byzantine,
                strangers=manifest.parameters.probation > 0,
                note=note,
                name_of=manifest.name_of,
            )

        self.link = NetworkLink(make_mesh, inbox, max(limits.most_bulk_bytes, limits.most_control_bytes))

    def stand(self, standing: Standing) -> None:
        """Tell the others how far this peer is."""
        self.link.soon(lambda mesh: mesh.stand(standing))

    def expect(self, roster: Roster) -> None:
        """Take note of the members and candidates of the run as it is now, or as it was when this peer last was in a step."""
        members, candidates = frozenset(roster.members), roster.door.keys
        self._belonging = members | candidates | self._founders.keys()
        addresses = member_addresses(roster, self._founders, self._lookup)
        self.link.soon(lambda mesh: mesh.expect(ExpectedConnections(members, candidates, addresses)))

    def ask_whether_reached(self, address: str) -> bool:
        """Ask the members that are connected to dial this peer; `reached` has their answers. False where that would prove
        nothing: libp2p takes the way on which it is connected already."""
        if not self._lookup:
            self.link.soon(lambda mesh: mesh.ask_whether_reached(address))
        return not self._lookup

    def reached(self) -> Mapping[PeerId, bool | None]:
        """For each member that was asked whether it has reached this peer; None: it has not answered."""
        return self.link.mesh.dial_backs.answers

    def stop(self) -> None:
        """Let the protocol's thread stop with `StoppedError` when it next waits; may be called from any thread."""
        self._inbox.stop(StoppedError("stopped"))

    def leave(self) -> None:
        """Say goodbye: the others go on without this peer at once. Nothing may be sent afterwards."""
        self.link.soon(Mesh.leave)

    def ban(self, banned: frozenset[PeerId]) -> None:
        """Send nothing more to these, and hear nothing more from them."""
        self.link.soon(lambda mesh: mesh.ban(banned))

    def presence(self) -> Presence:
        """Raises `StoppedError` if this peer is to stop."""
        self._inbox.check()
        return self.seen

    @property
    def seen(self) -> Presence:
        """May be asked from any thread."""
        mesh = self.link.mesh
        return Presence(mesh.standings, mesh.refused, mesh.troubles)

    def traffic(self) -> Traffic:
        mesh = self.link.mesh
        return Traffic(mesh.received[Lane.CONTROL], mesh.received[Lane.BULK], *mesh.bytes)

    def links(self, name_of: Callable[[PeerId], str], course: Course) -> tuple[Link, ...]:
        """How each connection is doing, and how often its peer was waited for."""
        troubles = self.link.mesh.troubles
        return tuple(
            Link(
                peer=name_of(peer),
                connected=(connection := one.connection) is not None,
                received_bytes=one.bytes[0],
                sent_bytes=one.bytes[1],
                latency_s=None if connection is None else connection.round_trip_s,
                timeouts=course.silences[peer],
                heard_last=course.last[peer],
                late_s=course.late_s(peer),
                lost=one.losses,
                trouble=troubles.get(peer, ""),
            )
            for peer, one in sorted(self.link.mesh.links, key=lambda link: name_of(link[0]))
        )

    def close(self) -> None:
        self.link.stop()


def member_addresses(roster: Roster, founders: Mapping[PeerId, str], lookup: str) -> dict[PeerId, str]:
    """Where to dial members and candidates, and what strangers said who were members, and may be again. Those who may not are
    strangers: else names that came and went would take all connections in time, and none of them could be crowded out [M4]. A
    successor key is where the key before it was; whoever gave no address is looked up, where the transport can."""
    known = {**founders, **dict(roster.addresses)}
    for old, successor in roster.successors:
        known[successor] = known.get(old, "")
    candidates = {candidate.key: candidate.address or lookup for candidate in roster.door.candidates}
    return (
        {peer: known.get(peer, "") for peer in roster.may_ask & roster.came_in}
        | {PeerId(key): address for key, address in candidates.items()}
        | {peer: known.get(peer) or lookup for peer in roster.members}
    )


def limits_for(parameters: int, bytes_per_second: float | None) -> TransportLimits:
    """The transport's bounds for a model of so many parameters. States travel in chunks."""
    largest = max(4 * parameters, CHUNK_BYTES)
    return TransportLimits(
        most_control_bytes=_MOST_CONTROL_BYTES,
        most_bulk_bytes=largest + (1 << 16),
        most_queued_bytes=_MOST_CONTROL_BYTES + 4 * largest + (1 << 24),
        bytes_per_second=bytes_per_second,
    )
