"""The form of `run.toml`: which keys there are, how they are read (strictly) and written (for people to read).

The meaning of the values, and whether they fit together, is the manifest's business.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from troth.errors import OperatorError, printable
from troth.files import parse_toml
from troth.network.manifest.options import STRETCH
from troth.protocol.core.run import Parameters
from troth.version import __version__

FORMAT: Final = 3
MOST_FOUNDERS = 256
MOST_DATA_FILES = 1000
MOST_CODE_FILES = 100


class ManifestError(OperatorError):
    """A manifest that cannot be used, or does not fit this machine; the message names the field and the way out."""


class ConsentError(ManifestError):
    """Code that a manifest names, and that nobody here has agreed to run; the message names its SHA-256."""


Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class TaskSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The task, and how its gradients are computed."""

    spec: str
    code: Hex32
    files: Annotated[dict[str, Hex32], Meta(max_length=MOST_CODE_FILES)] = {}  # that the task's file imports, by name
    device: Literal["cpu", "cuda"] = "cpu"
    one_by_one: bool = False


class DataSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The data, and where people get it."""

    digest: Hex32
    where: str = ""
    files: Annotated[dict[str, Hex32], Meta(max_length=MOST_DATA_FILES)] = {}  # by name, in the task's order


class TrainingSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Optimizer, learning rate and initial state."""

    steps: int
    optimizer: str
    rate: float
    schedule: str = "cosine"
    warmup: int = 0
    outer: float = 1.0
    seed: int = 0
    initial_state: Hex32 | None = None
    continues: Hex32 | None = None


class ProtocolSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of `Parameters`, with the same defaults."""

    size: int
    tau: float
    byzantine: int
    validators: int
    projections: int = 16
    beyond_guarantee: bool = False
    tau_auto: float | None = None
    tau_least: float = Parameters.tau_least
    tau_most: float = Parameters.tau_most
    deviation: float | None = None
    content_every: int = 1
    probation: int = 0
    slots: int = Parameters.slots
    ticket_bits: int = Parameters.ticket_bits
    rekey_every: int = Parameters.rekey_every
    local_steps: int = Parameters.local_steps
    code: str = Parameters.code


class TimeoutsSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`Timeouts`: lower bounds, and how far they may grow."""

    delta_s: float
    compute_s: float
    bulk_s: float
    stretch: float = STRETCH
    memory_bytes: int


class FounderSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One founder."""

    name: str
    key: Hex32
    address: str = ""
    record_key: Hex32 | None = None


class RunFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`run.toml`, field by field."""

    format: Literal[3]
    name: str
    nonce: Hex32
    task: TaskSection
    data: DataSection
    training: TrainingSection
    protocol: ProtocolSection
    timeouts: TimeoutsSection
    founder: Annotated[list[FounderSection], Meta(min_length=1, max_length=MOST_FOUNDERS)]


_HEADER = """\
# A run of Troth, as written by version {version}: what its members agree on. Every value below is part of the run's
# name, so everybody must have the same. There is no secret in it.
# To take part: troth join {file} --identity me.key
"""

_COMMENTS = {
    "format": "of this file",
    "name": "for people to read",
    "nonce": "random: the same plan again is another run",
    "task.spec": "see 'troth tasks'; a file is looked for beside this one",
    "task.code": "SHA-256 of the file that defines the task",
    "task.device": "gradients of one class of hardware have the same bits",
    "task.one_by_one": "true: never several gradients in one call",
    "data.digest": "of the task's data files and of a few batches",
    "data.where": "where people get them",
    "training.warmup": "steps until the full rate",
    "training.outer": "factor of the rate of the aggregate's step, times that of the local steps",
    "training.seed": "seed of the initial parameters",
    "training.continues": "the run that this state comes from: its members' signatures are in the .json file beside it",
    "training.initial_state": "digest of model and optimizer to begin from: the file initial-state-… beside this one",
    "protocol.size": "the model's parameters; follows from the task",
    "protocol.tau": "clipping radius; where it starts if tau_auto is set",
    "protocol.tau_auto": "tau follows the usual distance from the aggregate, times this",
    "protocol.tau_least": "lower limit of tau",
    "protocol.tau_most": "upper limit of tau",
    "protocol.byzantine": "the most liars that the run promises to withstand",
    "protocol.validators": "members per step who audit instead of contributing",
    "protocol.projections": "numbers that a report holds for each part",
    "protocol.beyond_guarantee": "for research: more liars than can be withstood for sure",
    "protocol.deviation": "allowed between classes of hardware: see 'troth doctor'",
    "protocol.content_every": "steps between records that name the content of model and optimizer",
    "protocol.probation": "steps that a stranger works before it is a member; 0: founders only",
    "protocol.slots": "strangers on probation at a time",
    "protocol.ticket_bits": "work in a stranger's ticket: 2 to this power hashes",
    "protocol.rekey_every": "updates between changes of the keys that sign records; old ones are erased",
    "protocol.local_steps": "gradients that a contribution is the mean of",
    "protocol.code": "what gradients and aggregates travel as",
    "timeouts.delta_s": "for a message between honest peers",
    "timeouts.compute_s": "for a gradient, an audit, a trial",
    "timeouts.bulk_s": "for the model's parts on their way",
    "timeouts.stretch": "upper limit of the timeouts, as a multiple: they grow where most members measure longer times",
    "timeouts.memory_bytes": "memory that one peer may take up at another in a step",
}
_SECTIONS = {
    "task": "The task that is trained.",
    "data": "Its data.",
    "training": "Optimizer, rates, and where training begins.",
    "protocol": "Protection against liars.",
    "timeouts": "Lower limits of the timeouts, in seconds. A quiet step ends as soon as all have spoken. A peer that\n"
    "# keeps to these is never left out, whatever liars say; a slower one may be, so be generous.",
    "task.files": "SHA-256 of each file that the task's file imports from beside it; it can import no other from there.",
    "data.files": "SHA-256 of each data file ('sha256sum' shows it), to tell which one differs.",
    "founder": "Founders: name, public key ('troth key show'), and host:port, or \"\" for a peer that only dials out;\n"
    "# maybe a key for the first records ('troth key records'), which is erased then.",
}


_LEFT_OUT = ("tau_least", "tau_most", "rekey_every", "local_steps", "code")  # where they are as usual


def read(raw: bytes) -> RunFile:
    """Raises ManifestError, and nothing else, for bytes of another form."""
    try:
        values = parse_toml(raw, "manifest")
    except ValueError as error:
        raise ManifestError(printable(str(error))) from error
    if values.get("format", FORMAT) != FORMAT:
        raise ManifestError(
            f"written in format {quoted(str(values['format']))}, this version of Troth reads format {FORMAT}: "
            "write a new manifest with troth new, or use the version that wrote this one"
        )
    try:
        return msgspec.convert(values, RunFile)
    except msgspec.MsgspecError as error:
        raise ManifestError(_in_words(printable(str(error)))) from error


def write(file: RunFile, summary: Sequence[str] = ()) -> str:
    """TOML for people: comments, sections in order, and no value that is the protocol's default anyway."""
    lines = [_HEADER.format(version=__version__, file="run.toml"), *(f"# {line}" for line in summary)]
    lines += [""] if summary else []
    for name in ("format", "name", "nonce"):
        lines.append(_line(name, getattr(file, name), _COMMENTS[name]))
    usual: dict[str, float] = {name: getattr(Parameters, name) for name in _LEFT_OUT} | {"outer": 1.0}
    for section in ("task", "data", "training", "protocol", "timeouts"):
        lines += ["", f"# {_SECTIONS[section]}", f"[{section}]"]
        for name, value in msgspec.structs.asdict(getattr(file, section)).items():
            if value is not None and usual.get(name) != value and not isinstance(value, dict):
                lines.append(_line(name, value, _COMMENTS.get(f"{section}.{name}", "")))
        if files := {"task": file.task.files, "data": file.data.files}.get(section):
            lines += ["", f"# {_SECTIONS[f'{section}.files']}", f"[{section}.files]"]
            lines += [_line(_toml(name), digest, "") for name, digest in files.items()]
    lines += ["", f"# {_SECTIONS['founder']}"]
    for founder in file.founder:
        lines.append("[[founder]]")
        lines += [
            _line(name, value, "") for name, value in msgspec.structs.asdict(founder).items() if value is not None
        ]
        lines.append("")
    return "\n".join(lines)


def _line(name: str, value: str | float | bool, comment: str) -> str:
    return f"{name} = {_toml(value)}" + (f"  # {comment}" if comment else "")


def _toml(value: str | float | bool) -> str:
    """A value as TOML spells it, and JSON too: a fraction, which is finite, reads back as the same bits."""
    return json.dumps(value, ensure_ascii=False)


def _in_words(complaint: str) -> str:
    """A complaint of msgspec (`Object contains unknown field `x` - at `$.task``) in words."""
    what, _, where = complaint.partition(" - at `$")
    field = where.rstrip("`").lstrip(".")
    what = what.replace("Object contains unknown field", "unknown key")
    what = what.replace("Object missing required field", "missing key")
    what = what.replace(r"`str` matching regex '^[0-9a-f]{64}\\Z'", "64 hexadecimal digits, in small letters")
    return f"{field}: {what}" if field else what


def quoted(text: str) -> str:
    """Hostile text for a terminal: short, and without control characters."""
    return f"'{printable(text[:80])}'"
