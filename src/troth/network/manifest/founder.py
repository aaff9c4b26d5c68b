"""The founders of a run, as the manifest names them."""

import re
from dataclasses import dataclass

from troth.crypto import PeerId, valid_peer
from troth.network.manifest.errors import ManifestError, quoted
from troth.network.manifest.toml import FounderSection

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]{1,32})?\]")
_MOST_ADDRESS_CHARACTERS = 300


@dataclass(frozen=True)
class Founder:
    """One of the peers that start the run."""

    name: str  # for people to read; a peer is its key
    key: PeerId
    address: str  # host:port, or "" for a peer that only dials out
    record_key: PeerId | None = None  # with which it signs the first records; None: with its own

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ManifestError(
                f"a founder's name has 1 to 32 letters, digits, dots, dashes or underscores, got {quoted(self.name)}"
            )
        if not valid_peer(self.key):
            raise ManifestError(f"the key of founder {self.name} is no Ed25519 public key: see 'troth key show'")
        if self.record_key is not None and not valid_peer(self.record_key):
            raise ManifestError(f"the record key of founder {self.name} is no Ed25519 public key: see 'troth key show'")
        if self.address:
            _split_address(self.address, self.name)

    @classmethod
    def of(cls, section: FounderSection) -> "Founder":
        record_key = None if section.record_key is None else PeerId(bytes.fromhex(section.record_key))
        return cls(section.name, PeerId(bytes.fromhex(section.key)), section.address, record_key)

    @property
    def section(self) -> FounderSection:
        record_key = None if self.record_key is None else self.record_key.hex()
        return FounderSection(name=self.name, key=self.key.hex(), address=self.address, record_key=record_key)

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Host (an IPv6 address without its brackets) and port that it listens on."""
        return _split_address(self.address, self.name) if self.address else None


def _split_address(address: str, founder: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if len(address) > _MOST_ADDRESS_CHARACTERS or not _HOST.fullmatch(host) or not re.fullmatch(r"[0-9]{1,5}", port):
        raise ManifestError(
            f"the address of founder {founder} must be host:port (or [IPv6]:port, or empty), got {quoted(address)}"
        )
    if not 1 <= int(port) <= 65535:
        raise ManifestError(f"the port of founder {founder} must be from 1 to 65535, got {port}")
    return host.removeprefix("[").removesuffix("]"), int(port)
