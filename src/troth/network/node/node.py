"""A peer's life on a real network: find the others, train, write down what happened, come back after whatever went wrong.

The protocol is `protocol.step`, unchanged; this file gives it a line, a disk, and somebody who watches.
"""

import json
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from safetensors.torch import save

from troth.crypto import Identity, PeerId
from troth.errors import OperatorError
from troth.evidence.bans import BanEvidence, History, reason_for
from troth.evidence.beside import save_evidence
from troth.evidence.verify import UnprovedError, verify_ban
from troth.files import write_bytes, write_text
from troth.network.disk.audit_records import AuditRecordFiles
from troth.network.disk.checkpoints import Checkpoints, Marks
from troth.network.disk.journal import Journal
from troth.network.disk.signed_slots import SignedSlotsFile
from troth.network.malloc import keep_memory
from troth.network.manifest.manifest import Manifest, ManifestError, mismatches
from troth.network.mesh.inbox import Inbox
from troth.network.mesh.link import NetworkLink, NetworkThread
from troth.network.mesh.mesh import Mesh
from troth.network.mesh.session import VERSION, Hello, Standing, delegation_bytes
from troth.network.node.events import StepEvent
from troth.network.node.metrics import Metrics
from troth.network.transport.base import Lane, Limits, Transport
from troth.network.transport.tcp import TcpTransport
from troth.protocol.broadcast.channel import AgreedChannel, PacketLink
from troth.protocol.broadcast.signed_slots import SignedSlots
from troth.protocol.core.channel import Channel, Entropy
from troth.protocol.core.coins import Coins
from troth.protocol.core.errors import CannotGoOnError, LeftOutError, StalledError
from troth.protocol.core.records import StepRecord, decode_record
from troth.protocol.core.run import Run
from troth.protocol.core.state import Outcome, Peer
from troth.protocol.recovery.member import Member
from troth.protocol.wire.messages import Phase
from troth.protocol.wire.primitives import Primitives
from troth.training import Problem
from troth.training.work import Training, TrainingWork

R = TypeVar("R")
_LARGE = 1 << 20  # parameters
_LOOK_EVERY_S = 0.02
_TELL_EVERY_S = 3.0
_MOST_CONTROL_BYTES = 1 << 25  # who comes back is told what everyone announced, and the records of many steps


class Watcher(Protocol):
    """Somebody who looks on: a terminal, a swarm, a test."""

    def stepped(self, event: StepEvent) -> None: ...

    def note(self, text: str) -> None:
        """One line."""
        ...


class SystemEntropy:
    """Secrets that nobody can guess."""

    def coins(self, step: int, attempt: int) -> Coins:
        return Coins(secrets.token_bytes(32), secrets.token_bytes(32))


class Body:
    """What an honest peer is made of. A rehearsal puts other things in the place of these."""

    def work(self, manifest: Manifest, problem: Problem, tools: Primitives) -> TrainingWork:
        return manifest.work(problem, tools)

    def entropy(self) -> Entropy:
        return SystemEntropy()

    def link(self, link: PacketLink, identity: Identity) -> PacketLink:
        return link

    def channel(
        self, link: PacketLink, identity: Identity, manifest: Manifest, tools: Primitives, slots: SignedSlots
    ) -> AgreedChannel:
        return AgreedChannel(identity, link, manifest.timeouts, tools, slots)

    def outside(self, channel: AgreedChannel, identity: Identity, run: Run) -> Channel:
        """What the protocol talks to."""
        return channel


@dataclass(frozen=True)
class Libp2pOptions:
    """For peers behind NATs: how others are found and reached (needs the extra `libp2p`)."""

    initial_peers: tuple[str, ...] = ()  # multiaddrs of peers that anyone can dial, to enter the DHT by
    relays: tuple[str, ...] = ()  # multiaddrs; given, this peer is reached through them only
    announce: tuple[str, ...] = ()  # multiaddrs that others can dial, where they are not those listened on
    serves_relay: bool = False  # for peers behind NATs


@dataclass(frozen=True)
class Options:
    """What the person who runs a peer may choose for itself."""

    folder: Path
    listen: str  # host:port
    addresses: dict[PeerId, str] = field(default_factory=dict)  # other than the manifest's
    founding_s: float = 120.0  # after that enough members begin, or begin anew, without the rest
    restart_with: int | None = None  # so many are enough for that; by default as many as no forgotten record can miss
    evaluate_every: int = 10
    bytes_per_second: float | None = None
    keep_checkpoints: int = 3
    metrics_port: int | None = None  # for Prometheus, on this machine only
    tensorboard: bool = False
    libp2p: "Libp2pOptions | None" = None  # None: TCP


class BannedError(CannotGoOnError):
    """This peer is out of the run."""


class Node:
    """One peer. `live` returns when the run is over."""

    def __init__(
        self, manifest: Manifest, identity: Identity, options: Options, watcher: Watcher, body: Body | None = None
    ) -> None:
        self.manifest = manifest
        self.run = manifest.run
        self.identity = identity
        self.options = options
        self.watcher = watcher
        self.body = body or Body()
        self.tools = Primitives()
        task = manifest.make_task()
        self.problem = manifest.problem(task)
        wrong = mismatches(manifest, task, self.problem)
        if wrong:
            raise ManifestError("; ".join(wrong))
        if identity.peer not in self.run.founders:
            raise ManifestError(
                f"the key {identity.peer.hex()[:8]}… is not among the founders of this run: use the one whose public key is "
                "in the manifest (troth key show FILE)"
            )
        if self.problem.size >= _LARGE:
            keep_memory()
        self.work = self.body.work(manifest, self.problem, self.tools)
        self.first = manifest.first_state(self.work)
        self.history = History(self.run)
        self.outcome: Outcome[Training] | None = None  # the last one
        self.member: Member[Training] | None = None
        self._channel: AgreedChannel | None = None
        self._incarnation = 0
        self._claim_folder()

    def _claim_folder(self) -> None:
        folder = self.options.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            mark = folder / "run"
            if mark.exists() and mark.read_text(encoding="ascii").strip() != self.run.id.hex():
                raise OperatorError(f"{folder} belongs to another run: choose another with --folder")
            write_text(mark, self.run.id.hex() + "\n")
        except OSError as error:
            raise OperatorError(f"cannot write to {folder}: {error.strerror}; choose another with --folder") from error
        self.checkpoints = Checkpoints(
            folder / "checkpoints", self.run.id, self.work, keep=self.options.keep_checkpoints
        )
        self.kept = AuditRecordFiles(folder / "checkpoints", self.run.id, self.checkpoints)
        self.journal = Journal(folder / "journal", self.run.id, after=self.checkpoints.marks().journal)
        if self.journal.cut:
            self.watcher.note(f"the journal's last line was torn: {self.journal.cut} bytes of it are cut off")
        self.metrics = Metrics(folder, port=self.options.metrics_port, tensorboard=self.options.tensorboard)

    # Who it is now

    @property
    def _slots_path(self) -> Path:
        return self.options.folder / "signed-slots"

    @property
    def _successor_path(self) -> Path:
        return self.options.folder / "heir.key"

    def _now_as(self) -> Identity:
        return Identity.load(self._successor_path) if self._successor_path.exists() else self.identity

    # Its life

    def live(self) -> None:
        """Train to the end. Raises `BannedError` if the others put this peer out."""
        known = self._slots_path.exists()
        signed = self.checkpoints.marks().signed if known else Marks().signed
        self._open_network(self._now_as())
        try:
            if not known and not self._begins_with_the_others():
                self.watcher.note(
                    "the run began without this peer, or its folder was lost: it comes back under a new key"
                )
                self._close_network()
                Identity.generate().save(self._successor_path)
                self._open_network(self._now_as())
                known = True
            self.slots = SignedSlotsFile(self._slots_path, signed)
            try:
                drive(self._from_here(known))
            finally:
                self._keep_model()
                self.slots.close()
        finally:
            self._close_network()
            self.journal.close()
            self.metrics.close()

    async def _from_here(self, known: bool) -> None:
        """As a member from the start, or back into what goes on."""
        me = self._now_as()
        member = self.member = self._make_member(me)
        if not known:
            assert self._channel is not None
            try:
                await self._watch(member, member.take_part(self._channel))
            except (LeftOutError, StalledError) as why:
                self.watcher.note(f"{why}; looking for the others")
        while not member.over:
            self._stand(member.state.step, ready=True, begun=True)
            try:
                await self._watch(member, member.come_back(me))
            except (LeftOutError, StalledError) as why:
                self.watcher.note(f"{why}; trying again")
        self._end(member)
        await self._wait_for_stragglers(member)

    def _make_member(self, me: Identity) -> Member[Training]:
        found = self.checkpoints.last(self.first)
        self._incarnation = found.state.incarnation
        self._channel = self._open_channel(me)
        outside = self.body.outside(self._channel, me, self.run)
        peer = Peer(self.identity, self.run, self.work, outside, self.body.entropy(), self.tools)
        member = Member(
            peer,
            self.kept.onto(found.state),
            self._open_observer,
            self.manifest.steps,
            certified=self.journal.certified(found.state.step) or self.journal.certified(found.state.step - 1),
            lacks=found.lacks,
            past=[self.kept.onto(state) for state in found.past],
            patience=self.options.founding_s,
            restart_with=lambda: self.options.restart_with,
        )
        member.write_down, member.threw_away = self.journal.recorded, self._threw_away
        return member

    def _open_channel(self, me: Identity) -> AgreedChannel:
        channel = self.body.channel(self.body.link(self.link, me), me, self.manifest, self.tools, self.slots)
        channel.write_down = self.journal.announced
        return channel

    def _open_observer(self, me: Identity) -> AgreedChannel:
        link = self.body.link(self.link, me)
        self._channel = AgreedChannel(me, link, self.manifest.timeouts, self.tools, self.slots, observing=True)
        self._channel.write_down = self.journal.announced
        return self._channel

    async def _watch(self, member: Member[Training], steps: AsyncIterator[Outcome[Training]]) -> None:
        started = time.monotonic()
        async for outcome in steps:
            self._keep(outcome)
            self._stand(outcome.state.step, ready=True, begun=True)
            if outcome.record.banned:
                self.network.ban(frozenset(outcome.state.roster.banned))
            self._tell(outcome, time.monotonic() - started)
            started = time.monotonic()
            mine = {member.peer.me, self.identity.peer}
            if mine & set(outcome.state.roster.banned):
                raise BannedError(f"this peer was banned in step {outcome.record.step}")

    def _stand(self, step: int, *, ready: bool, begun: bool) -> None:
        self.network.stand(Standing(ready, begun, step))

    # What lasts

    def _keep(self, outcome: Outcome[Training]) -> None:
        self._write_evidence(self.history.add(outcome))
        self.kept.save(outcome.state)
        self.checkpoints.save(outcome.state, self._marks(), whole=outcome.state.scales.updates >= self.manifest.steps)
        self.outcome = outcome

    def _marks(self) -> Marks:
        return Marks(self.journal.settle(), self.slots.last)

    def _keep_model(self) -> None:
        """When it stops: if all others stop too, nobody else has the model (SPEC B5)."""
        if self.member is not None and self.member.lacks is None:
            self.kept.save(self.member.state, whole=True)
            self.checkpoints.save(self.member.state, self._marks(), whole=True)

    def _write_evidence(self, made: Sequence[BanEvidence]) -> None:
        """Of bans whose record is certified. Who came back may lack the records that lead to it; then others have it."""
        folder = self.options.folder / "evidence"
        for evidence in made:
            try:
                proof = verify_ban(evidence.text, self.run.id)
            except UnprovedError:
                continue
            folder.mkdir(exist_ok=True)
            save_evidence(folder / evidence.file_name(self.manifest.name_of(proof.banned)), evidence, proof)

    def _threw_away(self, record: StepRecord) -> None:
        """A record that was not certified. Its audits are made again by everyone, so wrong work is found again; two signed
        messages for one place prove an equivocation to anyone, and are kept for people."""
        name, seen = self.manifest.name_of, self.history.uncertified
        self.watcher.note(f"step {record.step} was not certified before the run stopped, and is made again")
        for judgement in record.judgements:
            if judgement.banned is not None:
                self.watcher.note(f"it had banned {name(judgement.banned)}: {reason_for(judgement, name)}")
        for peer, (slot, *twice) in (seen.equivocations if seen is not None and seen.record == record else {}).items():
            folder, said = self.options.folder / "evidence", [[one.payload.hex(), one.signature.hex()] for one in twice]
            folder.mkdir(exist_ok=True)
            proof = {"run": slot.run.hex(), "place": list(slot[1:]), "sender": peer.hex(), "said": said}
            write_text(folder / f"thrown-away-step{record.step}-{name(peer)}.json", json.dumps(proof, indent=1) + "\n")

    def _tell(self, outcome: Outcome[Training], seconds: float) -> None:
        assert self._channel is not None
        record, state, name = outcome.record, outcome.state, self.manifest.name_of
        updates, paused = state.scales.updates, not record.updated and not record.closing
        due = not paused and (updates % self.options.evaluate_every == 0 or updates == self.manifest.steps)
        event = StepEvent(
            step=state.step,
            updates=updates,
            of=self.manifest.steps,
            seconds=seconds,
            loss=self.work.loss,
            members=len(state.roster.members),
            guarantee=state.roster.liars,
            audits=len(outcome.audited),
            attempts=outcome.attempts,
            control_bytes=self.network.mesh.received[Lane.CONTROL],
            bulk_bytes=self.network.mesh.received[Lane.BULK],
            sent_bytes=self.network.mesh.sent,
            delta_s=self._channel.timeouts.delta,
            least_delta_s=self.manifest.timeouts.delta,
            banned=tuple(
                {name(j.banned): reason_for(j, name) for j in record.judgements if j.banned is not None}.items()
            ),
            left=tuple(name(PeerId(peer)) for peer in record.absent),
            expelled=tuple(name(PeerId(peer)) for peer in record.expelled),
            returned=tuple(name(PeerId(rejoin.member)) for rejoin in record.returned),
            paused_for=tuple(name(gone.peer) for gone in state.roster.away) if paused else None,
            observed=outcome.observed,
            restarted=record.incarnation > self._incarnation,
            metrics=self.problem.evaluate(state.training.parameters_D) if due else None,
        )
        self._incarnation = record.incarnation
        self.metrics.stepped(event)
        self.watcher.stepped(event)

    def _end(self, member: Member[Training]) -> None:
        """The model for whoever wants to use it, and what proves where it comes from."""
        folder, training = self.options.folder, member.state.training
        self.checkpoints.save(member.state, self._marks(), whole=True)
        named = {
            name: piece.contiguous().clone() for name, piece in self.problem.layout.views(training.parameters_D).items()
        }
        write_bytes(folder / "model.safetensors", save(named))
        proof: dict[str, Any] = {
            "run": self.run.id.hex(),
            "step": member.state.step,
            "state_digest": self.work.digest(training).hex(),
            "closed": any(decode_record(last.record).closing for last in member.certified[-1:]),
        }
        if not proof["closed"]:
            self.watcher.note("the run ends unclosed: too few signed its last record, so nobody can prove this model")
        for last in member.certified[-1:]:
            proof["record"] = last.record.hex()
            proof["signatures"] = {peer.hex(): signature.hex() for peer, signature in sorted(last.signatures.items())}
        write_text(folder / "model.json", json.dumps(proof, indent=1) + "\n")

    async def _wait_for_stragglers(self, member: Member[Training]) -> None:
        """Whoever is still on its way needs a majority of the others to tell it how it ended."""
        assert self._channel is not None
        wanted, last = set(member.state.roster.may_ask) - {member.peer.me}, member.state.step
        until = time.monotonic() + 10 * self.manifest.timeouts.delta
        while time.monotonic() < until:
            standings = self.network.mesh.standings
            if all(standings[peer].step >= last for peer in wanted & standings.keys()):
                return
            await member.linger(self._channel, self.manifest.timeouts.delta / 4)

    # The network

    def _open_network(self, me: Identity) -> None:
        founders, options = self.manifest.founders, self.options
        blob = 4 * self.run.parameters.size
        state = len(self.work.pack(self.first.training))
        limits = Limits(
            most_control_bytes=_MOST_CONTROL_BYTES,
            most_bulk_bytes=max(blob, state) + (1 << 16),
            most_queued_bytes=_MOST_CONTROL_BYTES + 4 * max(blob, state) + (1 << 24),
            bytes_per_second=options.bytes_per_second,
        )
        inbox = Inbox(room=4 * limits.most_bulk_bytes + (1 << 22))
        delegation = None if me is self.identity else self.identity.sign(delegation_bytes(self.run.id, me.peer))
        hello = Hello(VERSION, self.run.id, dict(self.manifest.digests()), self.identity.peer, delegation)
        elsewhere = "" if options.libp2p is None else "dht:"  # those who gave no address dial, or are looked up
        addresses = {one.key: options.addresses.get(one.key, one.address or elsewhere) for one in founders}

        async def make() -> Mesh:
            transport = self._transport(me, limits)
            here = await transport.listen(options.listen)
            if options.libp2p is not None:
                self.watcher.note(f"listening on {here}")
            hold_s = self.manifest.timeouts.delta
            return Mesh(transport, hello, me.peer, addresses, inbox, hold_s=hold_s, told=self.watcher.note)

        self.network = NetworkThread(make, inbox)
        self.network.start()
        self.link = NetworkLink(
            self.network.post, inbox, max(limits.most_bulk_bytes, limits.most_control_bytes), self.network.gone
        )

    def _transport(self, me: Identity, limits: Limits) -> Transport:
        """Anyone may connect: the mesh asks who it is."""
        wish = self.options.libp2p
        if wish is None:
            return TcpTransport(me, limits, admits=lambda _: True)
        from troth.network.transport.libp2p.transport import Libp2pTransport  # an extra

        return Libp2pTransport(
            me,
            limits,
            lambda _: True,
            run=self.run.id,
            initial_peers=wish.initial_peers,
            relays=wish.relays,
            announce=wish.announce,
            serves_relay=wish.serves_relay,
            keeps=lambda peer: peer in self.run.founders,
        )

    def _close_network(self) -> None:
        self.network.stop()

    def _begins_with_the_others(self) -> bool:
        """Wait until everyone is there, or patience is over and as many as a restart needs (SPEC B5). False if the run goes
        on already."""
        founders, mesh, roster = set(self.run.founders), self.network.mesh, self.first.roster
        enough, mine = roster.restart_quorum, {self.identity.peer}
        if self.options.restart_with is not None:
            enough = min(enough, max(roster.quorum, self.options.restart_with))
        started = told = time.monotonic()
        while True:
            now, standings = time.monotonic(), mesh.standings
            here = founders & (standings.keys() | mine)
            begun = {peer for peer in here - mine if standings[peer].begun}
            refused = {peer: why for peer, why in mesh.refused.items() if peer in founders - here}
            if here == mine and (len(refused) >= roster.quorum or refused.keys() == founders - mine):
                names = ", ".join(self.manifest.name_of(peer) for peer in sorted(refused))
                raise ManifestError(
                    f"{names} cannot train with this peer: {next(iter(refused.values()))}; everybody needs the same run.toml"
                )
            if sum(standings[peer].step > 0 for peer in begun) > roster.liars:
                return False
            complete = here == founders
            ready = complete or (len(here) >= enough and now >= started + self.options.founding_s)
            self._stand(0, ready=ready, begun=False)
            agreed = {peer for peer in here - mine if standings[peer].ready}
            if ready and (len(agreed) == len(founders) - 1 or (len(agreed) + 1 >= enough and (begun or not complete))):
                self._stand(0, ready=True, begun=True)
                return True
            if now >= told + _TELL_EVERY_S:
                told = now
                missing = [
                    f"{self.manifest.name_of(peer)} ({mesh.troubles.get(peer, 'connected, not ready')})"
                    for peer in sorted(founders - mine - agreed)
                ]
                self.watcher.note(
                    f"{len(agreed) + 1} of {len(founders)} founders are here, {enough} are needed; "
                    f"waiting for {', '.join(missing)}"
                )
            time.sleep(_LOOK_EVERY_S)

    def waits_for(self) -> str | None:
        """For people: where it is, and for whom it waits."""
        channel, member = self._channel, self.member
        if member is not None and member.restart is not None and member.restart.waits:
            missing, members = member.restart.missing, len(member.state.roster.members)
            names = ", ".join(self.manifest.name_of(peer) for peer in sorted(missing)) or "them to be ready"
            return (
                f"stopped: {members - len(missing)} of {members} members are here, and with {member.restart.least} the run goes "
                f"on from step {member.state.step}; waits for {names} (people may agree on fewer: --restart-with)"
            )
        where = channel.waits_for if channel is not None else None
        if where is None:
            return None
        slot, missing = where
        names = ", ".join(self.manifest.name_of(peer) for peer in sorted(missing)) or "blobs or its own computations"
        return f"step {slot.step}, {Phase(slot.phase).name.lower()}: waits for {names}"


def drive(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never waits for anything but its line, whose `receive` blocks."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("the protocol waits for nothing but its line")
