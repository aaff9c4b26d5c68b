"""Whole peers in threads, over TCP on the loopback."""

import dataclasses
import socket
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from troth.crypto import Identity, Seed, derive
from troth.events.kinds import Stepped
from troth.evidence.model_file import from_text
from troth.evidence.verify_model import proves_model
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.manifest import Founder, Manifest
from troth.network.manifest.options import ManifestOptions
from troth.network.manifest.toml import ManifestError
from troth.network.mesh import StoppedError
from troth.network.node import founding
from troth.network.node.folder import PeerFolder
from troth.network.node.node import Node
from troth.network.node.options import NodeOptions
from troth.network.transport.base import ListenError
from troth.protocol.core.records import StepRecord

IDS = sorted((Identity.from_secret(Seed(derive(0, "mesh", k))) for k in range(3)), key=lambda one: one.peer)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class SilentSink:
    def stepped(self, event: Stepped, record: StepRecord) -> None: ...

    def note(self, text: str) -> None: ...


@pytest.mark.long
def test_a_peer_with_another_manifest_ends_and_names_the_difference(tmp_path: Path) -> None:
    """Rather than to wait for ever for people who will never take it."""
    founders = tuple(Founder(f"peer{k}", one.peer, free_address()) for k, one in enumerate(IDS))
    manifest = build_manifest(
        "quadratic", founders, ManifestOptions(steps=3, delta_s=1.0, compute_s=1.0, bulk_s=0.5)
    ).manifest
    other = dataclasses.replace(manifest, steps=6)
    raised: dict[int, str] = {}

    def live(number: int, mine: Manifest) -> None:
        options = NodeOptions(tmp_path / str(number), listen=founders[number].address, founding_s=3.0)
        try:
            Node(mine, IDS[number], options, SilentSink()).live()
        except ManifestError as error:
            raised[number] = str(error)

    threads = [
        threading.Thread(target=live, args=(number, other if number == 2 else manifest), daemon=True)
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in reversed(threads):
        thread.join(timeout=60)
    assert raised.keys() == {2}, "two of three fit, and train"
    assert "peer0, peer1 cannot train with this peer" in raised[2]
    assert "the manifests differ in training options; everybody needs the same run.toml" in raised[2]
    assert all((tmp_path / str(number) / "model.json").exists() for number in (0, 1))


class FirstNoteSink(SilentSink):
    """Tells when the peer has begun to wait."""

    def __init__(self) -> None:
        self.noted = threading.Event()

    def note(self, text: str) -> None:
        self.noted.set()


def test_a_peer_that_waits_for_the_others_stops_when_another_thread_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(founding, "_TELL_EVERY_S", 0.0)
    founders = tuple(Founder(f"peer{k}", one.peer, free_address()) for k, one in enumerate(IDS))
    manifest = build_manifest("quadratic", founders, ManifestOptions(steps=3, delta_s=1.0)).manifest
    sink = FirstNoteSink()
    node = Node(manifest, IDS[0], NodeOptions(tmp_path, listen=founders[0].address), sink)

    def stop() -> None:
        assert sink.noted.wait(60)
        node.stop()

    stopper = threading.Thread(target=stop, daemon=True)
    stopper.start()
    with pytest.raises(StoppedError):
        node.live()
    stopper.join(60)


@pytest.fixture
def alone(tmp_path: Path) -> tuple[Manifest, NodeOptions]:
    """A run that one founder makes by itself."""
    address = free_address()
    manifest = build_manifest("quadratic", [Founder("one", IDS[0].peer, address)], ManifestOptions(steps=50)).manifest
    return manifest, NodeOptions(tmp_path / "one", listen=address)


def test_a_peer_whose_network_fails_saves_its_state(alone: tuple[Manifest, NodeOptions]) -> None:
    """It cannot say goodbye any more; what it has is worth no less for that."""
    manifest, options = alone

    class FailingSink(SilentSink):
        def stepped(self, event: Stepped, record: StepRecord) -> None:
            node._connected.link.stop()
            raise RuntimeError("the network stopped")

    node = Node(manifest, IDS[0], options, FailingSink())
    with (
        pytest.raises(RuntimeError, match="the network stopped"),
        patch.object(
            PeerFolder, "save_when_stopping", autospec=True, side_effect=PeerFolder.save_when_stopping
        ) as saved,
    ):
        node.live()
    assert saved.call_count == 1


@pytest.mark.long
def test_a_port_that_is_taken_keeps_neither_folder_nor_key(alone: tuple[Manifest, NodeOptions]) -> None:
    manifest, options = alone
    host, port = options.listen.split(":")
    node = Node(manifest, IDS[0], options, SilentSink())
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        with pytest.raises(ListenError):
            node.live()
    assert Node(manifest, IDS[0], options, SilentSink()).live().scales.updates == 50
    del node  # until here it was still there, and held nothing


# Record keys


class NotingSink(SilentSink):
    """Looks into a folder after every step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.kept: list[int] = []
        self.changes: list[int] = []

    def stepped(self, event: Stepped, record: StepRecord) -> None:
        self.kept.append(len(list(self._folder.rglob("*.key"))))
        self.changes += [record.step] if record.rekeyed else []


@pytest.mark.long
def test_a_peer_changes_its_record_key_and_erases_the_old_ones(alone: tuple[Manifest, NodeOptions]) -> None:
    """[U6] The founder's first one too; none is left when the run is over."""
    plain, options = alone
    first, options = (
        Identity.generate(),
        dataclasses.replace(options, first_record_key=options.folder / "me.records.key"),
    )
    options.folder.mkdir()
    first.save(options.folder / "me.records.key")
    founder = dataclasses.replace(plain.founders[0], record_key=first.peer)
    parameters = dataclasses.replace(plain.parameters, rekey_every=10)
    manifest = dataclasses.replace(plain, founders=(founder,), parameters=parameters)
    sink = NotingSink(options.folder)
    assert Node(manifest, IDS[0], options, sink).live().scales.updates == 50
    assert sink.changes == [0, 10, 20, 30, 40]
    assert set(sink.kept) == {1, 2}
    assert sink.kept[-1] == 1
    assert list(options.folder.rglob("*.key")) == []
    proof = from_text((options.folder / "model.json").read_text())
    assert proves_model(proof)


def test_a_founder_without_its_first_record_key_does_not_begin(
    alone: tuple[Manifest, NodeOptions], tmp_path: Path
) -> None:
    """[U6] And one that is for another run stays where it is."""
    plain, options = alone
    first, others = Identity.generate(), tmp_path / "me.records.key"
    founder = dataclasses.replace(plain.founders[0], record_key=first.peer)
    manifest = dataclasses.replace(plain, founders=(founder,))
    Identity.generate().save(others)
    overwritten = tmp_path / "old.records.key"  # and the power went before it was removed
    overwritten.write_bytes(bytes(119))
    for place in (None, others, overwritten):
        given = dataclasses.replace(options, first_record_key=place)
        with pytest.raises(ManifestError, match="Make another with 'troth key records'"):
            Node(manifest, IDS[0], given, SilentSink()).live()
    assert others.exists()
    assert not overwritten.exists()
    open_to_all = tmp_path / "open.records.key"
    first.save(open_to_all)
    open_to_all.chmod(0o644)
    with pytest.raises(ManifestError, match="chmod 600"):
        Node(manifest, IDS[0], dataclasses.replace(options, first_record_key=open_to_all), SilentSink())
