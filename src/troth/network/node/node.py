"""One peer of a run on a real network: find the others, train, keep what must last, come back after a power cut.

The protocol itself is `protocol.recovery.member` and `protocol.step`; a node gives it a link, a disk, and somebody who watches.
"""

import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from troth.crypto import Identity, KeyFileError, PeerId, Slot
from troth.events.from_step import event_of_outcome
from troth.network.disk.checkpoints import Marks
from troth.network.disk.lock import lock_key
from troth.network.disk.signing import finish_erasing
from troth.network.malloc import manage_memory
from troth.network.manifest.files import mismatches
from troth.network.manifest.manifest import Manifest
from troth.network.manifest.toml import ManifestError
from troth.network.mesh import StoppedError
from troth.network.neighbour import FIRST_MODEL, HARDWARE, Standing
from troth.network.node.ahead import GradientsAhead
from troth.network.node.evidence import EvidenceFiles, explain_ban
from troth.network.node.folder import PeerFolder
from troth.network.node.founding import (
    FoundingConditions,
    PeerNames,
    Presence,
    begin_with_the_others,
    lacking,
    meet_members,
)
from troth.network.node.network import NodeNetwork
from troth.network.node.options import NodeOptions
from troth.network.node.telling import EventSink, Eyes, Teller, Traffic
from troth.network.node.waiting import farewell, in_vain, wait_for_stragglers, waiting_for
from troth.network.node.way_in import Arrival, Unreached, WayIn, check_machine
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.channel import Said
from troth.protocol.core.records import decode_record
from troth.protocol.core.roles import Coins
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import CannotGoOnError, LeftOutError, StalledError
from troth.protocol.core.state import Outcome, State
from troth.protocol.recovery.builder import PeerBuilder
from troth.protocol.recovery.member import LostFolderError, Member
from troth.protocol.recovery.models import Downloads, most_kept
from troth.protocol.wire.primitives import Primitives
from troth.resting import RESTS_FROM
from troth.training import Problem, Task
from troth.training.hardware import describe
from troth.training.work import Training, TrainingWork

# The parts of an honest peer that a rehearsal replaces.


class SystemEntropy:
    """Coins from the system's generator, which nobody can guess."""

    def coins(self, step: int, attempt: int) -> Coins:
        return Coins(secrets.token_bytes(32), secrets.token_bytes(32))


class PeerFactory:
    """Makes the parts of an honest peer. A rehearsal overrides some of them, to repeat coins or to lie."""

    def work(self, manifest: Manifest, problem: Problem, tools: Primitives) -> TrainingWork:
        manifest.parameters.coding.prepare(problem.size)
        return manifest.work(problem, tools)

    def ahead(self, work: TrainingWork, allowed_s: Callable[[], float]) -> GradientsAhead:
        """The work as the protocol's steps see it. It begins gradients before they are asked for, unless vectors are so large
        that they rest in files: the next model and two gradients would take four of them in memory."""
        return GradientsAhead(work, allowed_s if work.problem.size < RESTS_FROM else None)

    def ports(self, ports: PeerBuilder[Training]) -> PeerBuilder[Training]:
        """The ports of an honest peer, or some of them wrapped."""
        return ports


R = TypeVar("R")


class BannedError(CannotGoOnError):
    """This peer is out of the run."""


class Node:
    """One peer. `live` returns when the run is over."""

    def __init__(
        self,
        manifest: Manifest,
        identity: Identity,
        options: NodeOptions,
        events: EventSink,
        factory: PeerFactory | None = None,
    ) -> None:
        task = manifest.make_task()
        problem = manifest.problem(task)
        _check_fit(manifest, identity, mismatches(manifest, task, problem))
        manage_memory(problem.size)
        self._manifest = manifest
        self._seat = identity  # the key in the manifest
        self._options = options
        self._names = PeerNames(manifest.name_of)
        self._network: NodeNetwork | None = None
        self._member: Member[Training] | None = None
        self._ports: PeerBuilder[Training] | None = None
        self._teller = Teller(manifest, identity.peer, options, events, self._names, self._eyes())
        self.note, self.log = self._teller.note, self._teller.log  # to people; the second not on the screen
        self._factory = factory or PeerFactory()
        self._tools = Primitives(problem.device)
        self.work = self._factory.work(manifest, problem, self._tools)
        self._ahead = self._factory.ahead(self.work, lambda: self._own_channel.pacing.next_timeouts.compute)
        # Until this peer knows where it stands: it is as large as the model, and nobody needs it later.
        self._first: State[Training] | None = _first_state(manifest, self.work, task, identity, options)
        # Digests of what all members must compute alike: the first model and, where audits are exact, a public gradient.
        self._sections = {FIRST_MODEL: self._first.model}
        if manifest.parameters.deviation is None:
            self._sections[HARDWARE] = self.work.hardware_class()
        self._key_lock = lock_key(manifest.run.id, identity.peer)
        self._folder = PeerFolder(
            options.folder,
            manifest.run.id,
            self.work,
            keep_checkpoints=options.keep_checkpoints,
            code=manifest.parameters.coding,
            keep_aggregates=most_kept(manifest.parameters.size, manifest.parameters.content_every),
            note=self.note,
            first_record_key=_first_record_key(manifest, identity, options),
            owner=identity,
        )
        self._evidence = EvidenceFiles(options.folder / "evidence", manifest.run, self._names, self.note)
        self._way_in = WayIn(manifest.run, identity.peer, self.note)
        self._unreached = Unreached(identity.peer, options.listen, self.note)
        self._meeting: str | None = None  # the reason why it has not begun yet
        self._process = secrets.token_bytes(32)
        self._stop_asked = False

    def stop(self) -> None:
        """Let `live` save its state, say goodbye and end with `StoppedError`, as soon as it waits for others; from any thread."""
        self._stop_asked = True
        if self._network is not None:
            self._network.stop()

    # The happy path

    def live(self) -> State[Training]:
        """Train to the end; the last state. Raises `BannedError` if the others ban this peer, `StoppedError` after `stop`."""
        known = self._folder.has_slots
        signed = self._folder.marks() if known else Marks()
        me = self._folder.current_identity(self._seat)
        try:
            with self._teller.life():
                self._open_network(me)
                given = self._connected, self._founding, self._note_meeting
                if self._way_in.stranger and not known:
                    meet_members(*given, self._options.at)
                elif not (known or begin_with_the_others(*given)):
                    me, known = self._succeed("the run began without this peer, or its folder was lost"), True
                self._folder.open_slots(signed)
                try:
                    with self._teller.watching():
                        return drive(self._train(me, known=known))
                finally:
                    self._connected.leave()  # before it saves: the others need not wait for that
                    self._save_when_stopping()
        finally:
            if self._network is not None:
                self._network.close()
            self._ahead.close()
            self._folder.close()
            if self._key_lock is not None:
                self._key_lock.release()

    async def _train(self, me: Identity, *, known: bool) -> State[Training]:
        """Train as a member from the beginning, or come into a run that goes on. `known`: it knows what it has signed in it."""
        member, comes_back = self._make_member(me), known or self._way_in.stranger
        self._connected.expect(member.state.roster)
        if {me.peer, self._seat.peer} & set(member.state.roster.banned):
            raise BannedError("this peer was banned in this run, and cannot come back; its log.txt says why")
        if not comes_back:
            try:
                await self._follow(member, member.take_part(self._own_channel))
            except (LeftOutError, StalledError) as why:
                self.note(f"{why}; looking for the others")
        while not member.over:
            self._connected.stand(Standing(True, True, member.state.step))
            self._connected.expect(member.state.roster)
            try:
                seated = member.has_seat or self._way_in.begins()
                join = partial(member.join, self._options.at, invitation=self._options.invitation, remembers=known)
                await self._follow(member, member.come_back(me) if seated else join())
            except LostFolderError as why:
                me = self._succeed(str(why))
            except (LeftOutError, StalledError) as why:
                self.note(f"{why}; trying again")
            known = True
        last = member.certified[-1] if member.certified else None
        alarm = member.state.roster.alarm
        proved = self._folder.save_model(self._manifest.run, member.state, last)
        if proved or (last is not None and decode_record(last.record).ends_run):
            self._folder.record_keys.erase()  # there is nothing more to sign
        else:
            self.note("the run ends unclosed: too few signed its last record, so nobody can prove this model")
        await wait_for_stragglers(member, self._own_channel, self._connected.presence, self._manifest.timeouts.delta)
        if alarm is not None:
            raise alarm
        return member.state

    async def _follow(self, member: Member[Training], steps: AsyncIterator[Outcome[Training]]) -> None:
        """Keep and tell every step as it ends."""
        started = time.monotonic()
        async for outcome in steps:
            self._names.learn(outcome.state.roster.successors)
            self._evidence.add(outcome)
            self._folder.save_step(outcome.state, whole=outcome.state.scales.updates >= self._manifest.steps)
            self._connected.stand(Standing(True, True, outcome.state.step))
            self._connected.expect(outcome.state.roster)
            if outcome.record.banned:
                self._connected.ban(frozenset(outcome.state.roster.banned))
            self._tell(outcome, time.monotonic() - started)
            self._way_in.stepped(member.state, member.peer.me)
            self._unreached.stepped(
                map(PeerId, outcome.record.contributors), self._connected.seen.troubles, self._names
            )
            started = time.monotonic()
            if banned := {member.peer.me, self._seat.peer} & set(outcome.state.roster.banned):
                self._explain_ban(outcome, min(banned))
                raise BannedError(f"this peer was banned in step {outcome.record.step}")
            if self._stop_asked:  # a peer alone in its run waits for nobody
                raise StoppedError("stopped")

    def _tell(self, outcome: Outcome[Training], seconds: float) -> None:
        if self._ahead.in_vain:
            self.note(in_vain(self._ahead.in_vain, self._ahead.loss))
        record, updates = outcome.record, outcome.state.scales.updates
        due = updates % self._options.evaluate_every == 0 or updates == self._manifest.steps
        moves = record.updated or record.closing
        self._teller.stepped(
            outcome,
            seconds=seconds,
            loss=self._ahead.loss,
            delta_s=self._own_channel.pacing.timeouts.delta,
            metrics=self._ahead.evaluate(outcome.state.training) if due and moves else None,
        )

    def _explain_ban(self, outcome: Outcome[Training], banned: PeerId) -> None:
        manifest = self._manifest
        event = event_of_outcome(manifest.run, outcome, self._names, of=manifest.steps)
        door, unsigned = manifest.parameters.probation > 0, self._evidence.unsigned(banned)
        for line in explain_ban(event, self._names(banned), unsigned, manifest.task, door=door):
            self.note(line)

    def _save_when_stopping(self) -> None:
        if self._member is not None and self._member.lacks is None:
            self._folder.save_when_stopping(self._member.state)

    def _succeed(self, why: str) -> Identity:
        """Go on under a successor key (SPEC B1)."""
        self.note(f"{why}: it comes back under a new key")
        self._connected.close()
        self._folder.make_successor()
        me = self._folder.current_identity(self._seat)
        self._open_network(me)
        return me

    # The parts

    @property
    def _founding(self) -> FoundingConditions:
        options = self._options
        founders = Roster.founding(self._manifest.run)
        lacks = lacking(founders, self._seat.peer, self._folder.record_keys.held)
        return FoundingConditions(
            self._seat.peer, founders, options.founding_s, options.restart_with, self._names, lacks
        )

    def _open_network(self, me: Identity) -> None:
        machine = describe(self.work.problem)
        own = self._options, self.note, self._process, self._sections, machine
        self._network = NodeNetwork(self._manifest, self._seat, me, *own)
        if self._stop_asked:
            self._network.stop()

    @property
    def _connected(self) -> NodeNetwork:
        assert self._network is not None
        return self._network

    @property
    def _channel(self) -> BroadcastChannel | None:
        """The member's, or the observer's while it comes back."""
        return None if self._ports is None else self._ports.opened

    @property
    def _own_channel(self) -> BroadcastChannel:
        assert self._channel is not None
        return self._channel

    def _make_member(self, me: Identity) -> Member[Training]:
        assert self._first is not None
        found, self._first = self._folder.last(self._first), None
        ports = self._open_ports(me)
        self._member = ports.member(
            ports.peer(self._seat, me),
            found.state,
            self._manifest.steps,
            certified=self._folder.certified(found.state.step),
            lacks=found.lacks,
            past=found.past,
            patience=self._options.founding_s,
            restart_with=lambda: self._options.restart_with,
            on_certified=self._folder.recorded,
            on_discarded=self._evidence.discarded,
            changes=self._folder.journal.roster_changes.since,
            on_followed=self._folder.journal.roster_changes.add,
            on_candidate=self._folder.save_standing,
            downloads=Downloads(self._folder.chunks, Arrival(self.note, self._teller.lives)),
            archive=self._folder.aggregates.served,
        )
        return self._member

    def _open_ports(self, me: Identity) -> PeerBuilder[Training]:
        slots = self._folder.slots
        assert slots is not None

        def on_announced(slot: Slot, said: Said) -> None:
            self._folder.journal.announced(slot, said)
            self._teller.course.announced(slot, said, self._own_channel.position.members)

        ports = PeerBuilder(
            run=self._manifest.run,
            work=self._ahead,
            tools=self._tools,
            bounds=self._manifest.timeouts,
            link=lambda _key: self._connected.link,
            slots=slots,
            entropy=SystemEntropy(),
            record_keys=self._folder.record_keys,
            on_announced=on_announced,
        )
        ports = self._factory.ports(ports)
        ports.open(me, observing=False)
        self._ports = ports
        return ports

    @property
    def state(self) -> State[Training] | None:
        """The newest state, if this peer holds its model; None while it comes back without. May be asked from any thread."""
        member = self._member
        if member is None:
            return None if self._folder.has_slots else self._first
        return member.state if member.lacks is None else None

    # People

    def _eyes(self) -> Eyes:
        return Eyes(
            traffic=lambda: Traffic() if self._network is None else self._network.traffic(),
            links=lambda names, course: () if self._network is None else self._network.links(names, course),
            place=lambda: None if self._channel is None else self._channel.waits_for,
            waits_for=self.waits_for,
        )

    def waits_for(self) -> str | None:
        """The reason why nothing happens, for people; may be called from any thread."""
        seen = Presence({}, {}, {}) if self._network is None else self._network.seen
        if self._member is not None:
            self._names.learn(self._member.state.roster.successors)
        elif not self._folder.has_slots:
            return self._meeting
        return waiting_for(self._member, self._channel, seen, self._teller.paused, self._names)

    def _note_meeting(self, text: str) -> None:
        self._meeting = text
        self.note(text)

    def farewell(self) -> str:
        """What becomes of the run while this peer is away, for people who stop it."""
        return farewell(self._member, self._seat.peer, self._manifest.parameters.validators, self._names)


def drive(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that waits for nothing but its link, whose `receive` blocks."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("the protocol waits for nothing but its link")


def _first_state(
    manifest: Manifest, work: TrainingWork, task: Task, identity: Identity, options: NodeOptions
) -> State[Training]:
    """The state before the first step. A stranger checks its machine first: it has nothing to lose yet."""
    first = manifest.first_state(work)
    if identity.peer not in manifest.run.founders:
        check_machine(task, work.problem, first.training, options)
    return first


def _first_record_key(manifest: Manifest, identity: Identity, options: NodeOptions) -> Path | None:
    """The file with the key for this founder's first records, if it is the one that the manifest names: another is for another
    run, and must not be erased in this one."""
    founder, path = manifest.founder(identity.peer), options.first_record_key
    if founder is None or founder.record_key is None or path is None or not path.exists():
        return None
    if finish_erasing(path):
        return None
    try:
        return path if Identity.load(path).peer == founder.record_key else None
    except KeyFileError as error:
        raise ManifestError(f"{error}: the manifest names it for your first records") from error


def _check_fit(manifest: Manifest, identity: Identity, differences: list[str]) -> None:
    if differences:
        raise ManifestError("; ".join(differences))
    if identity.peer not in manifest.run.founders and not manifest.parameters.probation:
        raise ManifestError(
            f"the key {identity.peer.hex()[:8]}… is not among the founders of this run, and its door is closed: use the key "
            "whose public half is in the manifest (troth key show FILE), or found a run with troth new --probation"
        )
