"""A run: what its members have agreed on before it starts."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec

from troth.clip.blocks import Code
from troth.crypto import Digest, PeerId, tagged_hash
from troth.errors import OperatorError
from troth.protocol.wire.messages import MOST_CANDIDATES

# D coordinates, K projections


MOST_CONTENT_EVERY = 1024
MOST_PROBATION = 1 << 16
MOST_REKEY_EVERY = 1 << 20
MOST_LOCAL_STEPS = 1000
_SMALL = 1 << 22  # parameters of a model whose content is hashed in every step
_SELDOM = 16  # steps between digests of a larger one


class RunError(OperatorError):
    """Parameters that no run can have; the message says which, and why."""


@dataclass(frozen=True)
class Parameters:
    """The protocol's numbers. Defaults are those of the design."""

    size: int  # D, the number of model parameters
    tau: float  # τ, the clipping radius of the whole vector; its start if tau_auto is set
    byzantine: int  # b, the most liars that the run promises to withstand
    validators: int = 1  # m, members that audit instead of contributing
    projections: int = 16  # K
    beyond_guarantee: bool = False  # researchers may ask for more liars than the promise covers
    tau_auto: float | None = None  # c: tau follows c times the usual distance from the aggregate (SPEC A6) …
    tau_least: float = 2.0**-300  # … within these bounds
    tau_most: float = 2.0**300
    deviation: float | None = None  # h, between classes of hardware (SPEC D3); None: one class, exact audits
    content_every: int = 1  # steps between records that name the content of the state (SPEC U5)
    probation: int = 0  # T, steps that a stranger works before it is a member (SPEC J5); 0: the door is closed
    slots: int = 4  # strangers on probation at a time
    ticket_bits: int = 16  # work in a ticket: 2 to this power hashes (SPEC J4)
    rekey_every: int = 1000  # updates between changes of the keys that sign records (SPEC U6)
    local_steps: int = 1  # gradients that a contribution is the mean of (SPEC R2)
    code: str = "float32"  # in which gradients and aggregates are sent (SPEC C4)

    def __post_init__(self) -> None:
        if self.size < 1 or self.projections < 1 or self.projections > 64:
            raise RunError(f"size must be at least 1, and projections 1 to 64, got {self}")
        if not 2.0**-300 <= self.tau <= 2.0**300:
            raise RunError(f"tau must be a positive number that can be squared, got {self.tau}")
        if not 2.0**-300 <= self.tau_least <= self.tau <= self.tau_most <= 2.0**300:
            raise RunError(f"tau must lie within its bounds, got {self.tau_least} ≤ {self.tau} ≤ {self.tau_most}")
        if self.tau_auto is not None and not 0 < self.tau_auto <= 0.5:
            raise RunError(
                f"`tau_auto` must be above 0 and at most 0.5 (more runs away under attack), got {self.tau_auto}"
            )
        if self.deviation is not None and not 0 < self.deviation < 0.2:
            raise RunError(
                f"`deviation` must be above 0 and below 0.2 (auditors accuse at five times that), got {self.deviation}"
            )
        if not 1 <= self.content_every <= MOST_CONTENT_EVERY:
            raise RunError(f"content_every must be 1 to {MOST_CONTENT_EVERY}, got {self.content_every}")
        if not (
            0 <= self.probation <= MOST_PROBATION and 1 <= self.slots <= MOST_CANDIDATES and 0 <= self.ticket_bits <= 64
        ):
            raise RunError(
                f"`probation` must be 0 to {MOST_PROBATION:,} steps, `slots` 1 to {MOST_CANDIDATES}, ticket_bits 0 to 64, got "
                f"{self.probation}, {self.slots} and {self.ticket_bits}"
            )
        if not 1 <= self.rekey_every <= MOST_REKEY_EVERY:
            raise RunError(f"rekey_every must be 1 to {MOST_REKEY_EVERY:,} updates, got {self.rekey_every}")
        if self.probation and self.deviation is not None:
            raise RunError("strangers can be checked by their bits alone: probation needs a run without `deviation`")
        if not 1 <= self.local_steps <= MOST_LOCAL_STEPS:
            raise RunError(f"`local_steps` must be 1 to {MOST_LOCAL_STEPS:,}, got {self.local_steps}")
        if self.local_steps > 1 and self.deviation is not None:
            raise RunError(
                "on a walk of several steps classes of hardware drift apart, so only bits can be checked: use `local_steps` 1, "
                "or machines of one class and no `deviation`"
            )
        if self.code not in Code.known:
            raise RunError(f"`code` must be one of {', '.join(Code.known)}, got {self.code!r}")
        if self.coding.rounds_centers and self.deviation is not None:
            raise RunError(
                f"`code = {self.code}` needs audits that compare bits, and so a run without `deviation`: leave that out, with "
                "machines of one class or exact numerics, or send float32"
            )
        if not (0 <= self.byzantine < 1 << 16 and 0 <= self.validators < 1 << 16):
            raise RunError(f"`byzantine` and `validators` must not be negative, nor above {(1 << 16) - 1:,}")

    @property
    def coding(self) -> Code:
        return Code.known[self.code]

    @property
    def there_and_back(self) -> int:
        """Bytes of a gradient, and of an aggregate."""
        return self.coding.rows.length(self.size) + self.coding.centers.length(self.size)

    @property
    def names_hardware(self) -> bool:
        """Whether a Commit names its sender's class: among several (SPEC D3); and where rounding hides from whoever recomputes a
        gradient which bits a machine computes (SPEC E6)."""
        return self.deviation is not None or self.coding.rounds_centers

    @property
    def most_parts(self) -> int:
        """Parts that the model can be cut into, and so the most members: none of them is empty (SPEC R5)."""
        return -(-self.size // self.coding.grain)

    def plain(self) -> dict[str, int | bool | str | None]:
        """Values for JSON, exact: fractions are written in hexadecimal. What a closed door would be like is left out, and what
        is younger than the format, if that is as usual."""
        values = dataclasses.asdict(self)
        if not self.probation:
            values = {name: value for name, value in values.items() if name not in _DOOR}
        values = {name: value for name, value in values.items() if _YOUNGER.get(name, ...) != value}
        return {name: value.hex() if isinstance(value, float) else value for name, value in values.items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, int | bool | str | None]) -> "Parameters":
        """Parameters from the values of `plain`; raises ValueError (msgspec's included) for any others."""
        fractions = {field.name for field in dataclasses.fields(cls) if field.type in (float, float | None)}
        values = {
            name: float.fromhex(value) if name in fractions and isinstance(value, str) else value
            for name, value in plain.items()
        }
        parameters = msgspec.convert(values, cls, strict=True)
        if parameters.plain() != plain:
            raise ValueError("the parameters are not written in their one form")
        return parameters


_DOOR = frozenset({"probation", "slots", "ticket_bits"})
_YOUNGER = {name: getattr(Parameters, name) for name in ("rekey_every", "local_steps", "code")}  # as usual


def usual_content_every(size: int) -> int:
    """Steps between records that name the content of the state: hashing a small model costs nothing (SPEC U5)."""
    return 1 if size <= _SMALL else _SELDOM


@dataclass(frozen=True)
class Run:
    """Founders, parameters, and the description that everything else (task, optimizer, data) follows from."""

    founders: tuple[PeerId, ...]
    description: bytes
    parameters: Parameters
    nonce: bytes  # 32 random bytes: two runs by the same people with the same plan are different runs
    record_keys: tuple[tuple[PeerId, PeerId], ...] = ()  # of founders that begin with another than their own (SPEC U6)

    def __post_init__(self) -> None:
        if len(self.nonce) != 32:
            raise RunError(f"the nonce must have 32 bytes, got {len(self.nonce)}")
        if not self.founders or tuple(sorted(set(self.founders))) != self.founders:
            raise RunError("founders must be distinct and sorted by key")
        named = tuple(founder for founder, _ in self.record_keys)
        if tuple(sorted(set(named) & set(self.founders))) != named:
            raise RunError("record keys must be founders', one for each, sorted by founder")
        if self.parameters.most_parts < len(self.founders):
            raise RunError(
                f"a model of {self.parameters.size} parameters cannot be split among {len(self.founders)}"
                + (f" in blocks of {self.parameters.coding.grain}" if self.parameters.coding.rounds_centers else "")
            )
        most = most_byzantine(len(self.founders), self.parameters.validators)
        if self.parameters.byzantine > most and not self.parameters.beyond_guarantee:
            raise RunError(
                f"{self.parameters.byzantine} liars among {len(self.founders)} peers with "
                f"{self.parameters.validators} validators: the guarantee needs 2b < n − m, so at most {most}"
            )

    @cached_property
    def id(self) -> Digest:
        """Hash of the founding data. All signed bytes contain it, so nothing from one run counts in another (SPEC M1)."""
        parameters = json.dumps(self.parameters.plain(), sort_keys=True).encode()
        if not self.record_keys:
            return tagged_hash("troth/run/2", self.nonce, self.description, parameters, *self.founders)
        keys = tagged_hash("troth/run/record keys/1", *(key for pair in self.record_keys for key in pair))
        return tagged_hash("troth/run/3", self.nonce, self.description, parameters, keys, *self.founders)


def effective_validators(members: int, validators: int) -> int:
    """`m_t = min(m, ⌊(n_t − 1)/3⌋)` (SPEC R3)."""
    return min(validators, (members - 1) // 3)


def most_byzantine(members: int, validators: int) -> int:
    """The largest b with `2b < n − m` (SPEC G1); without a validator nobody is ever caught, so then it is 0."""
    active = effective_validators(members, validators)
    return (members - active - 1) // 2 if active else 0


# Reasons why a peer cannot finish a step: states of the world, neither bugs nor lies.


class CannotGoOnError(Exception):
    """This peer cannot finish the step: a state of the world, neither a bug nor a lie."""


class LeftOutError(CannotGoOnError):
    """The others went on without this peer: it has to catch up and come back."""


class StalledError(CannotGoOnError):
    """No quorum is left, and the rest must not decide for the others (SPEC N4)."""


class AlarmError(CannotGoOnError):
    """More members are banned than the run withstands liars: it has ended, and people have to see to it (SPEC G4)."""

    def __init__(self, step: int, bans: int, liars: int) -> None:
        super().__init__(
            f"the run ended in step {step}: {bans} of its members are banned, and it withstands {liars} "
            f"liar{'' if liars == 1 else 's'}, so that an honest one may be among them. Look at the evidence of each ban with "
            "those you trust, and begin a new run from this model: troth new --from FOLDER"
        )


class UncertifiedError(StalledError):
    """No quorum signed the last record: nobody can prove it, so all members go back to the state before it (SPEC U2)."""
