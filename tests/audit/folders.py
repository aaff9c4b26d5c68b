"""Folders of peers, made by a simulation: the same files that `troth join` leaves, in a fraction of the time."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from troth.crypto import Identity, PeerId, Signature, Slot, derive
from troth.network.disk.checkpoints import Marks
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.manifest import Founder, Manifest
from troth.network.manifest.options import ManifestOptions
from troth.network.node.evidence import EvidenceFiles
from troth.network.node.folder import PeerFolder
from troth.protocol.core.channel import AttemptView, Channel, ForwardingChannel, Said
from troth.protocol.core.records import StepRecord, encode_record
from troth.protocol.core.state import Outcome
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Message
from troth.training.work import Training
from troth.workshop.simulation import Scenario
from troth.workshop.simulation.exchange import DroppingChannel
from troth.workshop.simulation.protocol_run import ProtocolSimulation
from troth.workshop.simulation.strangers import TICKET_BITS


def manifest_of(scenario: Scenario, steps: int, content_every: int | None = None) -> Manifest:
    """The manifest under which this scenario's peers found their run."""
    identities = [Identity.from_secret(derive(scenario.seed, "identity", k)) for k in range(scenario.peers)]
    founders = [Founder(f"peer{k}", one.peer, f"127.0.0.1:{7000 + k}") for k, one in enumerate(identities)]
    options = ManifestOptions(
        steps=steps,
        seed=scenario.seed,
        byzantine=scenario.byzantine,
        code=scenario.code,
        optimizer=scenario.optimizer,
        local_steps=scenario.local_steps,
        outer=scenario.outer,
    )
    made = build_manifest(str(scenario.task), founders, options).manifest
    made = dataclasses.replace(made, nonce=derive(scenario.seed, "run"))
    if scenario.probation:
        door = dataclasses.replace(made.parameters, probation=scenario.probation, ticket_bits=TICKET_BITS)
        made = dataclasses.replace(made, parameters=door)
    if content_every is None:
        return made
    return dataclasses.replace(made, parameters=dataclasses.replace(made.parameters, content_every=content_every))


class WrittenDown(ForwardingChannel):
    """The witness's channel: what is announced goes into its journal, as on the network."""

    def __init__(self, inner: Channel, folder: PeerFolder) -> None:
        super().__init__(inner)
        self._folder = folder

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        assert self._folder.slots is not None
        self._folder.slots.claim(slot)
        said = await super().announce(slot, message, view)
        self._folder.journal.announced(slot, said)
        return said


class WitnessedRun(ProtocolSimulation):
    """A run of which one honest peer keeps a folder."""

    def __init__(self, scenario: Scenario, manifest: Manifest, path: Path) -> None:
        super().__init__(scenario, run=manifest.run)
        self.manifest = manifest
        self.witness = next(one for one in self.honest if not isinstance(self.peers[one].channel, DroppingChannel))
        work = manifest.work(self.problem, self.tools)
        self.folder = PeerFolder(
            path, manifest.run.id, work, keep_checkpoints=3, note=lambda _text: None, code=manifest.parameters.coding
        )
        self.folder.open_slots(Marks())
        self.files = EvidenceFiles(path / "evidence", manifest.run, manifest.name_of, lambda _text: None)
        peer = self.peers[self.witness]
        written_down = WrittenDown(peer.channel, self.folder)
        self.peers[self.witness] = dataclasses.replace(peer, channel=written_down, certified=self._certified)
        self.last: CertifiedRecord | None = None

    def _certified(self, record: StepRecord, signatures: Mapping[PeerId, Signature]) -> None:
        self.last = CertifiedRecord(encode_record(record), {bytes(p): bytes(s) for p, s in signatures.items()})
        self.folder.recorded([self.last])

    def _look_at(self, outcomes: dict[PeerId, Outcome[Training]]) -> Outcome[Training] | None:
        outcome = outcomes[self.witness]
        if outcome.closing:
            self._certified(outcome.record, outcome.closing)
        self.files.add(outcome)
        self.folder.save_step(outcome.state, whole=outcome.state.scales.updates >= self.manifest.steps)
        if outcome.closing:
            self.folder.save_model(self.manifest.run, outcome.state, self.last)
        return super()._look_at(outcomes)


def witnessed(path: Path, scenario: Scenario, content_every: int | None = None) -> Manifest:
    """Simulate a run to its end; the witness's folder is `path`, its manifest beside it as `run.toml`."""
    assert scenario.steps is not None
    manifest = manifest_of(scenario, scenario.steps, content_every)
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "run.toml").write_text(manifest.to_toml())
    run = WitnessedRun(scenario, manifest, path)
    for _ in run.steps():
        pass
    assert run.agreement
    run.folder.close()
    return Manifest.load(path.parent / "run.toml")
