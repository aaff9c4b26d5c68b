"""Pure functions of identical bytes, computed once for all peers of a process (SPEC S1); on an accelerator also digests that are
computed where numbers lie, and one wait for all copies.

Without this, sixteen peers would verify every signature sixteen times. It can change no decision: keys are the bytes
themselves, digests are those of the host, and a test that shares nothing gets the same trace.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property, wraps
from itertools import cycle, pairwise
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.clip import on_device
from troth.clip.blocks import FLOAT32, Form
from troth.crypto import LEAF_BYTES, Digest, PeerId, Slot, sign_bytes
from troth.protocol.core.parts import Bounds
from troth.protocol.wire.blob import Blob, digest_all
from troth.protocol.wire.messages import Announced, Envelope, ReportNumbers
from troth.protocol.wire.primitives import Primitives, ReportTable
from troth.training.gradient_calls import DeviceCopy
from troth.workshop.simulation.exchange import Ask

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
_SHORT = 1 << 16  # bytes that are looked up; longer ones are hashed again, since looking them up takes as long
_HASHING = 4  # streams: hashes on an accelerator that were begun one after the other do not wait for each other
_ASIDE = 4  # threads that compute norms while others hash

# D coordinates, B bytes of signs for each


def _remembered(plain: F, digests: Callable[..., Iterable[Hashable]] | None = None) -> F:
    """A method of `Primitives` that answers each question once. `digests`: of all bytes that the answer depends on, if these are
    not the question itself."""
    name = plain.__name__

    @wraps(plain)
    def look_up(tools: "MemoPrimitives", *question: Any) -> Any:
        key = (name, *(question if digests is None else digests(*question)))
        if key not in tools._known:
            tools._known[key] = getattr(super(MemoPrimitives, tools), name)(*question)
        return tools._known[key]

    return cast(F, look_up)


class MemoPrimitives(Primitives):
    """Remembers results until `forget`, which is called after every step: older ones are seldom needed."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(device)
        self._known: dict[Hashable, Any] = {}
        self._same: dict[tuple[int, ...], tuple[tuple[object, ...], dict[Hashable, Any]]] = {}  # objects by identity
        self._signs: dict[Hashable, Any] = {}
        self._older_signs: dict[Hashable, Any] = {}  # of the step before: auditors need them

    def forget(self) -> None:
        self._known.clear()
        self._same.clear()
        self._signs, self._older_signs = {}, self._signs

    def once(self, key: Hashable, compute: Callable[[], R]) -> R:
        """For other pure functions; the key holds digests of all bytes that the result depends on."""
        if key not in self._known:
            self._known[key] = compute()
        known: R = self._known[key]
        return known

    def once_for(self, objects: tuple[object, ...], key: Hashable, compute: Callable[[], R]) -> R:
        """For pure functions of objects that are never changed: of the very same ones it is computed once."""
        identity = tuple(map(id, objects))
        _, known = self._same.setdefault(identity, (objects, {}))  # held, so that no other object gets its number
        if key not in known:
            known[key] = compute()
        result: R = known[key]
        return result

    def known_of(self, objects: tuple[object, ...], key: Hashable) -> Any:
        """What `once_for` has found, or None."""
        return self._same.get(tuple(map(id, objects)), (None, {}))[1].get(key)

    def drawn(self, key: Hashable, draw: Callable[[], R]) -> R:
        """For signs of a step, which auditors need in the next one too."""
        known = self._signs.get(key, self._older_signs.get(key))
        if known is None:
            known = self._signs[key] = draw()
        result: R = known
        return result

    verify = _remembered(Primitives.verify)
    leaf = _remembered(Primitives.leaf)  # a contributor's tree is opened part by part by its owners
    node = _remembered(Primitives.node)
    unpack = _remembered(Primitives.unpack)
    decode = _remembered(Primitives.decode)
    coin_commitment = _remembered(Primitives.coin_commitment)
    open = _remembered(Primitives.open)
    aggregate_norm = _remembered(Primitives.aggregate_norm, lambda blob, form=FLOAT32: [blob.digest, form.name])
    rounding = _remembered(Primitives.rounding, lambda blob, form: [blob.digest, form.name])
    joined = _remembered(Primitives.joined, lambda blobs, form=FLOAT32: [form.name, *(blob.digest for blob in blobs)])

    def verify_all(self, questions: Sequence[tuple[PeerId, bytes, bytes]]) -> list[bool]:
        new = [question for question in dict.fromkeys(questions) if ("verify", *question) not in self._known]
        for question, answer in zip(new, super().verify_all(new), strict=True):
            self._known["verify", *question] = answer
        return [self._known["verify", *question] for question in questions]

    def verify_soon(self, about: Digest, questions: Callable[[], Sequence[tuple[PeerId, bytes, bytes]]]) -> None:
        self.once(("verified", about), lambda: self.verify_all(questions()))

    def digest(self, blob: bytes | memoryview) -> Digest:
        if len(blob) > _SHORT:
            return super().digest(blob)
        blob = bytes(blob)
        return self.once(("digest", blob), lambda: super(MemoPrimitives, self).digest(blob))

    def table(self, reports: Sequence[ReportNumbers]) -> ReportTable:
        plain = super().table
        return self.once_for(tuple(reports), "table", lambda: plain(reports))

    def scaled(self, numbers_D: Tensor, factor: float) -> Tensor:
        plain = super().scaled
        return self.once_for((numbers_D,), factor, lambda: plain(numbers_D, factor))

    def projection(self, key: Digest, rows: int, size: int) -> NDArray[np.float64]:
        plain = super().projection
        return self.drawn(("projection", key, rows, size), lambda: plain(key, rows, size))

    def sign_bytes(self, key: Digest, rows: int, size: int, start: int, stop: int) -> NDArray[np.uint8]:
        plain = super().sign_bytes
        return self.drawn(("signs", key, rows, size), lambda: plain(key, rows, size, 0, size))[start:stop]

    def open_all(self, slot: Slot, envelopes: Mapping[PeerId, Envelope]) -> Mapping[PeerId, Announced]:
        plain = super().open_all
        return self.once_for((envelopes,), ("open", slot), lambda: plain(slot, envelopes))


# On an accelerator


@dataclass
class AskDigests(Ask):
    """Aggregates of one owner, on their way to the host."""

    blobs: Sequence[Blob]
    downloads: Sequence[DeviceCopy]


class LockstepPrimitives(MemoPrimitives):
    """Peers in lockstep also wait together: one hashes its aggregate while others compute theirs."""

    async def hashed(self, blobs: Sequence[Blob]) -> None:
        if self.device.type == "cpu":
            await super().hashed(blobs)
        else:
            there = [blob.form.begin(blob.numbers_D(self.device, blob.form))[1] for blob in blobs]
            await AskDigests(blobs, [DeviceCopy(raw) for raw in there])

    def measure(self, asks: Sequence[AskDigests]) -> None:
        """Hash aggregates, and compute their norms, on all threads of the host."""
        blobs = [blob for ask in asks for blob in ask.blobs]
        for blob, download in zip(blobs, [one for ask in asks for one in ask.downloads], strict=True):
            blob.came_to_host(download.on_host())
        forms = [blob.form for blob in blobs]
        norms = _aside().map(super().aggregate_norm, blobs, forms)  # on their way, while this thread helps to hash
        digest_all(blobs)
        for blob, form, norm in zip(blobs, forms, norms, strict=True):
            self._known["aggregate_norm", blob.digest, form.name] = norm

    def cut(
        self, numbers_D: Tensor, bounds: Sequence[int], form: Form = FLOAT32, key: bytes = b""
    ) -> tuple[Tensor, tuple[Blob, ...]]:
        """Nothing is kept: a gradient is cut once, and where everyone audits there are hundreds of them."""
        known: Cut | None = self.known_of((numbers_D,), "cut")
        if known is not None and known.answers(bounds, form, key):
            return known.rounded.numbers_D, known.blobs
        if not numbers_D.is_cuda:
            return super().cut(numbers_D, bounds, form, key)
        rounded_D, raw = form.begin(numbers_D, key)
        blobs = Blob.cut(rounded_D, bounds, form, DeviceCopy(raw).on_host())
        digest_all(blobs)
        return rounded_D, blobs

    def was_cut(self, vector_D: Tensor, cut: "Cut") -> None:
        """Note pieces of a vector that were hashed before a peer asks for them."""
        self.once_for((vector_D,), "cut", lambda: cut)

    def signs_on_device(self, key: Digest, rows: int, size: int, start: int, stop: int) -> Tensor:
        question = ("signs on device", key, rows, size)
        whole_DB = self.drawn(question, lambda: uploaded_signs(key, rows, size, self.device))
        return whole_DB[start:stop]


@cache
def _aside() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_ASIDE, thread_name_prefix="aggregates")


def uploaded_signs(key: Digest, rows: int, size: int, device: torch.device) -> Tensor:
    """The bytes of the signs of all coordinates, on the device."""
    pinned: list[Tensor] = []

    def allocate(count: int) -> NDArray[np.uint8]:
        pinned.append(torch.empty(count, dtype=torch.uint8, pin_memory=True))
        memory: NDArray[np.uint8] = pinned[0].numpy()
        return memory

    return uploaded(sign_bytes(key, rows, 0, size, allocate), pinned[0], device)


def uploaded(bytes_DB: NDArray[np.uint8], memory: Tensor, device: torch.device) -> Tensor:
    """Bytes that lie in this pinned memory, on the device; nothing waits for it.

    The memory is copied as the tensor that it is: of an array in the middle of it PyTorch does not know that it is still being
    read, and would give it to the next who asks."""
    first = bytes_DB.ctypes.data - memory.data_ptr()
    return memory.to(device, non_blocking=True)[first : first + bytes_DB.size].view(bytes_DB.shape)


@dataclass(frozen=True)
class Rounded:
    """A vector as a form holds it, and its bytes, on the device that computes them."""

    numbers_D: Tensor
    raw: Tensor
    form: Form
    key: bytes  # that rounding was drawn from

    @classmethod
    def begin(cls, vector_D: Tensor, form: Form = FLOAT32, key: bytes = b"") -> "Rounded":
        """Round a finite vector; nothing waits for it."""
        numbers_D, raw = form.begin(vector_D, key)
        return cls(numbers_D.detach(), raw.detach(), form, key)


@dataclass(frozen=True)
class Cut:
    """The pieces of a vector between bounds, hashed."""

    rounded: Rounded
    bounds: Bounds
    blobs: tuple[Blob, ...]

    def answers(self, bounds: Sequence[int], form: Form, key: bytes) -> bool:
        """Whether these are the pieces that are asked for."""
        return (self.bounds, self.rounded.form, self.rounded.key) == (tuple(bounds), form, key)


class Hashing:
    """Digests of pieces of vectors that are computed on the accelerator on which these lie, beside everything else there.

    Thousands of leaves take as long as one, longer than the host takes for a few. So this is for many at once, begun before they
    are needed.
    """

    def __init__(
        self,
        vectors: Sequence[Rounded],
        bounds: Sequence[int],
        behind: Sequence[torch.cuda.Event] = (),
    ) -> None:
        """`vectors` are of one form. `behind`: what to wait for on the accelerator, beside all that the caller's stream has
        begun."""
        self._bounds, self._vectors, raws = tuple(bounds), vectors, [vector.raw for vector in vectors]
        aside, self._spans = next(_hashing(raws[0].device)), [vectors[0].form.length(bound) for bound in bounds]
        places_2N = on_device.leaf_places(raws, self._spans, LEAF_BYTES)
        # No copy is queued behind something that takes long: in the same queue, all other copies would wait behind it.
        brought = torch.cuda.Event()  # type: ignore[no-untyped-call]
        brought.record()
        for event in (brought, *behind):
            aside.wait_event(event)
        with torch.cuda.stream(aside):
            self._there_N8 = on_device.begin_hashes(raws, places_2N)
            self._computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._computed.record()
        for tensor in (places_2N, *raws):
            tensor.record_stream(aside)  # its memory is not given away before

    @cached_property
    def cuts(self) -> list[Cut]:
        """The pieces of every vector, once their digests have arrived."""
        self._computed.synchronize()
        hashes, at, cuts = self._there_N8.cpu().numpy().astype(">i4").tobytes(), 0, []
        for one in self._vectors:
            blobs = []
            for span, (first, last) in zip(pairwise(self._bounds), pairwise(self._spans), strict=True):
                before, at = at, at + 32 * -(-(last - first) // LEAF_BYTES)
                there = one.numbers_D, span, one.form, one.raw[first:last]
                blobs.append(Blob.hashed_there(*there, hashes[before:at]))
            cuts.append(Cut(one, self._bounds, tuple(blobs)))
        return cuts


@cache
def _hashing(device: torch.device) -> Iterator[torch.cuda.Stream]:
    return cycle([torch.cuda.Stream(device) for _ in range(_HASHING)])  # type: ignore[no-untyped-call]


def cuts_of(rows: Sequence[Tensor], bounds: Bounds, form: Form, keys: Sequence[bytes]) -> list[Cut]:
    """Gradients that were not begun ahead, rounded and hashed together where they lie; none where only the host can."""
    if not rows or not all(on_device.hashes_there(row_D) for row_D in rows):
        return []
    return Hashing([Rounded.begin(row_D, form, key) for row_D, key in zip(rows, keys, strict=True)], bounds).cuts
