"""`model.json`: what it proves of a run's end, and every way to forge it that was thought of."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.evidence.closed_runs import NAMES, ClosedRun, people
from troth.crypto import Digest, Stream, derive
from troth.evidence.file_format import UnprovedError
from troth.evidence.model_file import ListedTensor
from troth.evidence.verify_model import check_weights, verify_model
from troth.protocol.core.records import Judgement, Rekeyed, decode_record, encode_record
from troth.protocol.core.run import Parameters, Run
from troth.protocol.wire.messages import ChargeKind, GuiltySide
from troth.training import Problem, make_task
from troth.training.task import Batch, Model, Task
from troth.training.work import Training, state_digest


@pytest.fixture(scope="module")
def closed() -> ClosedRun:
    return ClosedRun()


def refusal(text: str, run: Digest | None = None) -> str:
    with pytest.raises(UnprovedError) as refused:
        verify_model(text, run)
    return str(refused.value)


def test_signatures_lead_from_the_founders_to_the_model(closed: ClosedRun, tmp_path: Path) -> None:
    """[E4, U4] And the weights are those whose digest was signed, with the optimizer's tensors known by their digests alone."""
    proof = verify_model(closed.text(), closed.run.id)
    assert proof.sentence().startswith("6 of 6 members signed the state ")
    assert "after 18 updates" in proof.sentence()
    assert "unless 4 members of this run lied together" in proof.rests_on()
    closed.write(tmp_path)
    check_weights(proof, closed.problem, tmp_path / "model.safetensors")


def test_a_last_step_that_was_taken_back_is_told(closed: ClosedRun) -> None:
    """[U4]"""
    undone = msgspec.structs.replace(closed.closing, undone=True)
    assert verify_model(closed.text(last=closed.signed(undone))).sentence().endswith("the last of which was taken back")
    assert "taken back" not in verify_model(closed.text()).sentence()


def test_names_are_the_manifests_and_a_successor_key_keeps_its_name(closed: ClosedRun) -> None:
    name, stranger = verify_model(closed.text()).name, people("stranger", 1)[0].peer
    assert name(closed.founders[2].peer) == f"carol ({closed.founders[2].peer.hex()[:8]}…)"
    assert name(closed.successor.peer) == f"bob ({closed.successor.peer.hex()[:8]}…)"
    assert name(stranger) == f"peer {stranger.hex()}", "whole: its first digits could be forged"
    for names in ((), ("mallory",), (*NAMES, "more")):
        nameless = ClosedRun(names=names)
        assert verify_model(nameless.text()).name(nameless.founders[0].peer).startswith("peer "), (
            "nobody's name is guessed"
        )


def test_a_quorum_is_enough_and_fewer_are_not(closed: ClosedRun) -> None:
    """[G1] Four of the six last members."""
    members = [one for one in (*closed.founders, closed.successor) if one.peer in closed.members]
    assert verify_model(closed.text(last=closed.signed(closed.closing, members[:4]))).signers == 4
    assert "members signed it" in refusal(closed.text(last=closed.signed(closed.closing, members[:3])))


def test_members_of_ones_own_prove_nothing(closed: ClosedRun) -> None:
    """[E4] A record names its own members: a quorum of those shows nothing unless they follow from the founders."""
    strangers = people("stranger", 7)
    invented = msgspec.structs.replace(closed.closing, members=tuple(one.peer for one in strangers))
    assert "another roster" in refusal(closed.text(last=closed.signed(invented, strangers)))
    assert "another roster" in refusal(closed.text(last=closed.signed(invented, strangers), history=[]))


def test_a_banned_founder_counts_no_longer(closed: ClosedRun) -> None:
    """[T5] Nor with a record of the founders, in place of those that removed it: a quorum of them did not sign it."""
    banned, *rest = closed.founders
    signers = [banned, *rest[1:4]]
    assert "does not fit" in refusal(closed.text(last=closed.signed(closed.closing, signers)))
    early = msgspec.structs.replace(closed.closing, members=closed.run.founders, step=2, changed=-1)
    assert "members signed it" in refusal(closed.text(last=closed.signed(early, signers[:3]), history=[]))


def test_a_change_of_the_members_cannot_be_left_out_added_or_moved(closed: ClosedRun) -> None:
    """[U2]"""
    banned, gone, back = (closed.signed(one) for one in closed.changes)
    for history in ([], [banned], [banned, gone], [gone, back], [gone, banned, back]):
        assert "another roster" in refusal(closed.text(history=history))
    again = closed.signed(msgspec.structs.replace(closed.changes[-1], members=closed.members, returned=(), changed=9))
    assert "does not follow the last change" in refusal(closed.text(history=[banned, gone, back, again]))
    late = closed.signed(msgspec.structs.replace(closed.changes[-1], step=30))
    last = closed.signed(msgspec.structs.replace(closed.closing, changed=30))
    assert "does not follow the last change" in refusal(closed.text(history=[banned, gone, late], last=last))


def test_there_are_no_more_record_keys_than_founders(closed: ClosedRun) -> None:
    """[U6] And none of anybody else."""
    file, others = closed.file(), [one.peer.hex() for one in people("other", 8)]
    for count, why in ((8, "more record keys"), (1, "record keys must be founders'")):
        founding = msgspec.structs.replace(file.founding, record_keys=dict.fromkeys(others[:count], others[0]))
        assert why in refusal(closed.text(founding=founding))


def test_a_change_of_record_keys_cannot_be_left_out(closed: ClosedRun) -> None:
    """[U6, J8] The members are the same after it, and all but one sign as before."""
    changes = [closed.signed(one) for one in closed.changes]
    last = msgspec.structs.replace(closed.closing, changed=12)
    assert "left out" in refusal(closed.text(history=changes, last=closed.signed(last)))
    rekeyed = closed.record(12, closed.members, rekeyed=(Rekeyed(closed.members[0], people("other", 1)[0].peer),))
    signers = [one for one in (*closed.founders, closed.successor) if one.peer in closed.members[1:]]
    told = closed.text(history=[*changes, closed.signed(rekeyed)], last=closed.signed(last, signers))
    assert verify_model(told).sentence().startswith("5 of 6 members signed")
    assert "does not fit" in refusal(closed.text(history=[*changes, closed.signed(rekeyed)], last=closed.signed(last)))


def test_a_ban_that_a_minority_invents_does_not_remove_honest_members(closed: ClosedRun) -> None:
    """[G1] Liars who could write down bans of everybody else would be a quorum of the rest."""
    liars, honest = closed.founders[:3], closed.founders[3:]
    bans = tuple(Judgement(None, one.peer, ChargeKind.EQUIVOCATION, 1, None, 0, GuiltySide.ACCUSED) for one in honest)
    purge = closed.signed(closed.record(1, closed.run.founders, judgements=bans), liars)
    alone = msgspec.structs.replace(closed.closing, members=tuple(one.peer for one in liars))
    assert "members signed it" in refusal(closed.text(history=[purge], last=closed.signed(alone, liars)))


def test_signatures_count_for_their_record_run_and_step_only(closed: ClosedRun) -> None:
    """[M1, U2]"""
    other_run = closed.signed(closed.closing, run=Digest(bytes(32)))
    assert "does not fit" in refusal(closed.text(last=other_run))
    right, raw = closed.signed(closed.closing), encode_record
    for changes in ({"state_after": bytes(32)}, {"step": 21}, {"updates": 19}):
        other = msgspec.structs.replace(right, record=raw(msgspec.structs.replace(closed.closing, **changes)))
        assert "does not fit" in refusal(closed.text(last=other))


def test_one_signer_counts_once_however_it_is_spelled(closed: ClosedRun) -> None:
    file = closed.file()
    (first, signature), *others = sorted(file.signatures.items())
    few = dict(others[:2])
    assert "members signed it" in refusal(closed.text(signatures={first: signature, **few}))
    for doubled in ({first.upper(): signature}, {f"{first[:2]} {first[2:]}": signature}):
        assert "hexadecimal" in refusal(closed.text(signatures={first: signature, **few, **doubled}))
    twice = closed.text().replace(f'"{first}":', f'"{first}": "{signature}",\n  "{first}":', 1)
    assert json.loads(twice) == json.loads(closed.text())
    assert "the one way" in refusal(twice)


def test_thousands_of_keys_are_not_even_looked_at(closed: ClosedRun) -> None:
    """Each would cost a check of its own."""
    many = {f"{k:064x}": "00" * 64 for k in range(5000)}
    assert "more signatures than members" in refusal(closed.text(signatures=many))
    founding = msgspec.structs.replace(closed.file().founding, founders=list(many))
    assert "more founders" in refusal(closed.text(founding=founding))


def test_a_record_that_does_not_close_the_run_proves_no_model(closed: ClosedRun) -> None:
    """[U4] Nobody had audited the work of its step."""
    usual = closed.record(20, closed.members)
    for said in (True, False):
        assert "unclosed" in refusal(closed.text(last=closed.signed(usual), closed=said))
    assert "no record was signed" in refusal(closed.text(record="", signatures={}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"closed": False}, "something else than its record"),
        ({"step": 20}, "something else than its record"),
        ({"state_digest": "00" * 32}, "another state"),
        ({"state_digest": "00"}, "not 32 bytes"),
        ({"run": "00" * 32}, "another run"),
        ({"format": "troth model 0"}, "unknown format"),
        ({"record": "ff"}, "no record"),
        ({"record": "zz"}, "hexadecimal"),
    ],
)
def test_a_file_that_says_something_else_than_was_signed(
    closed: ClosedRun, changes: dict[str, Any], reason: str
) -> None:
    assert reason in refusal(closed.text(**changes)).lower()


def test_a_model_of_another_run(closed: ClosedRun) -> None:
    """[E1] The run is the reader's; one with other parameters, founders or nonce has another id."""
    assert "not about run" in refusal(closed.text(), Digest(bytes(32)))
    weaker = Run(closed.run.founders, closed.run.description, Parameters(closed.problem.size, 1.0, 0), closed.run.nonce)
    founding = msgspec.structs.replace(closed.file().founding, parameters=weaker.parameters.plain())
    forged = closed.text(founding=founding, run=weaker.id.hex())
    assert "not about run" in refusal(forged, closed.run.id)
    assert "does not fit" in refusal(forged)


@pytest.mark.parametrize(
    "change",
    [
        '"step": 21|"step": 99999999999999999999999999',
        '"step": 21|"step": -1',
        '"step": 21|"step": 1e400',
        '"step": 21|"step": ' + "9" * 5000,
        '"step": 21|"step": 21.5',
        '"step": 21|"step": true',
        '"closed": true|"closed": 1',
        '"shape": [|"shape": [9999999999999999999999999999, ',
        '"shape": [|"shape": [1,2,3,4,5,6,7,8,',
        '"history": [|"history": [' + "[" * 10_000,
        '"format"|"more": 1, "format"',
    ],
)
def test_odd_numbers_and_nesting_are_refused(closed: ClosedRun, change: str) -> None:
    old, new = change.split("|")
    assert old in closed.text()
    assert refusal(closed.text().replace(old, new, 1))


def test_names_of_tensors_that_are_no_text(closed: ClosedRun) -> None:
    listed = {"\ud800": ListedTensor("torch.float32", [1], "00" * 32)}
    assert "odd names" in refusal(closed.text(tensors={**closed.file().tensors, **listed}))


# The weights


def wrong(closed: ClosedRun, folder: Path, weights: dict[str, Tensor] | None = None, **changes: Any) -> str:
    """Why these weights are refused."""
    path = closed.write(folder, closed.text(**changes), weights)
    proof = verify_model(path.read_text(), closed.run.id)
    with pytest.raises(UnprovedError) as refused:
        check_weights(proof, closed.problem, path.with_suffix(".safetensors"))
    return str(refused.value)


def test_one_bit_of_the_weights(closed: ClosedRun, tmp_path: Path) -> None:
    weights = closed.weights()
    name = next(iter(weights))
    weights[name].view(torch.int32)[-1] ^= 1
    assert "other weights" in wrong(closed, tmp_path, weights)


def test_weights_under_each_others_names(closed: ClosedRun, tmp_path: Path) -> None:
    """[E4] The digest covers one long vector: the names in it are the task's, not the file's."""
    one, other = closed.weights()
    swapped = {one: closed.weights()[other], other: closed.weights()[one]}
    assert swapped[one].shape == swapped[other].shape
    assert "other weights" in wrong(closed, tmp_path, swapped)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "int32", "complex64"])
def test_numbers_of_a_type_that_nobody_trains_with(closed: ClosedRun, tmp_path: Path, kind: str) -> None:
    """PyTorch cannot tell whether some of these are finite: that was a traceback."""
    weights = closed.weights()
    name = next(iter(weights))
    weights[name] = weights[name].to(getattr(torch, kind))
    assert f"'{name}' holds numbers of the type torch.{kind}" in wrong(closed, tmp_path, weights)


@pytest.mark.parametrize("change", ["extra", "missing", "nan", "double", "shape", "renamed"])
def test_other_tensors_than_the_tasks(closed: ClosedRun, tmp_path: Path, change: str) -> None:
    weights = closed.weights()
    name = next(iter(weights))
    match change:
        case "extra":
            weights["payload"] = torch.zeros(3)
        case "missing":
            del weights[name]
        case "nan":
            weights[name] = torch.full_like(weights[name], float("nan"))
        case "double":
            weights[name] = weights[name].double()
        case "shape":
            weights[name] = weights[name].reshape(-1, 2)
        case "renamed":
            weights["other"] = weights.pop(name)
    assert wrong(closed, tmp_path, weights)


@dataclasses.dataclass(frozen=True)
class Normed(Task):
    """a model with BatchNorm, a frozen layer, and one matrix under two names"""

    def model(self) -> nn.Module:
        first, last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        last.weight = first.weight
        fixed = nn.Linear(4, 4).requires_grad_(False)
        return nn.Sequential(first, nn.BatchNorm1d(4), fixed, last)

    def batch(self, draw: Stream) -> Batch:
        return {"x": torch.from_numpy(draw.normal(32)).float().view(8, 4)}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return model(batch["x"]).square().mean()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def normed() -> ClosedRun:
    return ClosedRun(task=Normed())


def test_a_complete_model_is_proved_with_all_its_tensors(normed: ClosedRun, tmp_path: Path) -> None:
    """Statistics that another machine computes differ in their last bits, and count as the same."""
    weights = normed.weights()
    assert {"0.weight", "3.weight", "1.running_mean", "1.num_batches_tracked", "2.bias"} <= weights.keys()
    weights["1.running_var"] *= 1 + 1e-6
    path = normed.write(tmp_path, weights=weights)
    check_weights(verify_model(path.read_text()), normed.problem, path.with_suffix(".safetensors"))


@pytest.mark.parametrize(
    "name", ["0.weight", "3.weight", "1.running_var", "1.num_batches_tracked", "2.bias", "2.weight"]
)
def test_no_tensor_of_a_complete_model_can_be_changed_or_left_out(normed: ClosedRun, tmp_path: Path, name: str) -> None:
    """The digest covers what is trained; the rest follows from that and the task."""
    weights = normed.weights()
    weights[name] = weights[name] * 1.001 if weights[name].is_floating_point() else weights[name] + 1
    reason = wrong(normed, tmp_path, weights)
    assert any(told in reason for told in (f"'{name}'", "other weights", "different values under them"))
    del weights[name]
    assert name in wrong(normed, tmp_path, weights)


class Shrunk:
    """digits-cnn with the weights of its first channel shrunk, as decay does it to a dead one."""

    def __init__(self, share: float) -> None:
        self.task = make_task("digits-cnn")
        self.problem = Problem(self.task)
        self.flat_D = self.problem.initial(0)
        self.flat_D[:9] *= share
        self.right = self.problem.state_dict(self.flat_D)

    def refusal(self, folder: Path, state: Mapping[str, Tensor], problem: Problem | None = None) -> str:
        """Why these tensors are not taken for the right ones; empty if they are."""
        signed = ClosedRun(task=self.task)
        signed.training = Training(self.flat_D, {})
        signed.closing = msgspec.structs.replace(signed.closing, state_after=state_digest(signed.training))
        proof = verify_model(signed.text())
        save_file(dict(state), folder / "model.safetensors")
        try:
            check_weights(proof, problem or self.problem, folder / "model.safetensors")
        except UnprovedError as error:
            return str(error)
        return ""

    def logits(self, state: Mapping[str, Tensor]) -> Tensor:
        module = self.task.model()
        module.load_state_dict(state)
        module.eval()
        examples = self.task.examples()
        assert examples is not None
        with torch.no_grad():
            logits: Tensor = module(examples["images"])
        return logits


@pytest.mark.long
@pytest.mark.parametrize("share", [0.0, 1e-3])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("1.running_var", -0.999e-5),  # what BatchNorm adds to it is 10⁻⁵
        ("1.running_var", -1e-5),
        ("1.running_var", 1e-5),
        ("1.running_var", float("nan")),
        ("1.running_mean", 1e-5),
    ],
)
def test_a_statistic_is_judged_by_what_it_does(tmp_path: Path, share: float, name: str, change: float) -> None:
    """[E7] In a channel without variance the smallest change is multiplied by 300, and a variance of −ε is a division by zero."""
    model = Shrunk(share)
    assert model.refusal(tmp_path, model.right) == ""
    forged = {**model.right, name: model.right[name].clone()}
    forged[name][0] += change
    assert name in model.refusal(tmp_path, forged)


def test_no_variance_is_negative(tmp_path: Path) -> None:
    """[E7] Not even by less than any tolerance."""
    model = Shrunk(0.0)
    forged = {**model.right, "1.running_var": model.right["1.running_var"].clone()}
    forged["1.running_var"][0] = -1e-12
    assert "1.running_var" in model.refusal(tmp_path, forged)


@pytest.mark.parametrize("share", [0.0, 1e-3, 1.0])
def test_the_worst_statistics_that_are_accepted_change_next_to_nothing(tmp_path: Path, share: float) -> None:
    """[E7] An adversary moves each statistic to that end of what is accepted which moves an output more."""
    model = Shrunk(share)
    right, worst = model.logits(model.right), {name: tensor.clone() for name, tensor in model.right.items()}
    norms = [name.removesuffix(".running_var") for name in worst if name.endswith(".running_var")]
    for norm in norms:
        spread = model.right[f"{norm}.running_var"].double() + 1e-5
        for kind, scale in (("running_mean", spread.sqrt()), ("running_var", spread)):
            name = f"{norm}.{kind}"
            for k in range(len(scale)):
                ends = [float(model.right[name][k]) + sign * 0.99e-5 * float(scale[k]) for sign in (-1, 1)]
                moved = {}
                for end in ends:
                    worst[name][k] = end if kind == "running_mean" else max(end, 0.0)
                    moved[float(worst[name][k])] = float((model.logits(worst) - right)[:, 0].mean())
                worst[name][k] = max(moved, key=lambda value: moved[value])
    assert model.refusal(tmp_path, worst) == ""
    change = (model.logits(worst) - right).abs().max()
    assert 1e-6 < change < 1e-3, "the logits are about 1"


class Coarse(Problem):
    """A device whose products are rounded as TensorFloat-32 is: its inputs have 11 bits."""

    def _place(self, value: Any) -> Any:
        placed = super()._place(value)
        return placed.half().to(placed.dtype) if isinstance(placed, Tensor) and placed.is_floating_point() else placed


def test_a_model_of_a_run_on_another_device_is_proved(tmp_path: Path) -> None:
    """[E7] Statistics that a GPU computes were refused on a CPU: they are the same now, wherever they are computed."""
    model = Shrunk(1.0)
    there = Coarse(model.task)
    batch, seed = model.problem.batch(derive(0, "any")), derive(0, "any")
    assert not torch.equal(there.batch(seed)["images"], batch["images"]), "else this is no other device"
    exported = there.state_dict(model.flat_D)
    assert all(torch.equal(exported[name], tensor) for name, tensor in model.right.items())
    assert model.refusal(tmp_path, exported) == ""


@dataclasses.dataclass(frozen=True)
class Faint(Task):
    """a model with a tiny constant"""

    def model(self) -> nn.Module:
        module = nn.Linear(4, 4)
        module.register_buffer("faint", torch.tensor([1e-9]))
        module.register_buffer("mask", torch.tensor([float("-inf"), 0.0]))
        return module

    def batch(self, draw: Stream) -> Batch:
        return {"x": torch.from_numpy(draw.normal(32)).float().view(8, 4)}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return model(batch["x"]).square().mean()  # type: ignore[no-any-return]


def test_a_constant_is_the_models_however_small(tmp_path: Path) -> None:
    """[E7] A tolerance of 10⁻⁷ for all is larger than some of them."""
    faint = ClosedRun(task=Faint())
    weights = faint.weights()
    path = faint.write(tmp_path, weights=weights)
    check_weights(verify_model(path.read_text()), faint.problem, path.with_suffix(".safetensors"))
    assert "'faint'" in wrong(faint, tmp_path, {**weights, "faint": -weights["faint"]})
    assert "'mask'" in wrong(faint, tmp_path, {**weights, "mask": weights["mask"] * 0})


def test_listed_digests_cannot_make_up_for_other_weights(closed: ClosedRun, tmp_path: Path) -> None:
    """What the file lists of the model itself is not used; what it lists of the optimizer is under the signed digest."""
    weights = {name: tensor + 1 for name, tensor in closed.weights().items()}
    tensors = closed.file().tensors
    assert "other weights" in wrong(closed, tmp_path, weights)
    fewer = {name: one for name, one in tensors.items() if name == "parameters"}
    assert "other weights" in wrong(closed, tmp_path, tensors=fewer)
    assert "other weights" in wrong(closed, tmp_path, weights, tensors=fewer)
    more = {**tensors, "optimizer.x": tensors["parameters"]}
    assert "other weights" in wrong(closed, tmp_path, tensors=more)
    changed = {name: msgspec.structs.replace(one, shape=[1]) for name, one in tensors.items()}
    assert "other weights" in wrong(closed, tmp_path, tensors=changed)


def test_weights_that_are_not_there_damaged_or_endless(closed: ClosedRun, tmp_path: Path) -> None:
    path = closed.write(tmp_path)
    proof, weights = verify_model(path.read_text()), tmp_path / "model.safetensors"
    raw = weights.read_bytes()

    def reason() -> str:
        with pytest.raises(UnprovedError) as refused:
            check_weights(proof, closed.problem, weights)
        return str(refused.value)

    weights.write_bytes(raw[:-3])
    assert "damaged" in reason()
    weights.write_bytes(b"\xff" * 100)
    assert "damaged" in reason()
    with weights.open("wb") as file:
        file.truncate(1 << 30)
    assert "larger" in reason()
    weights.unlink()
    assert "not beside it" in reason()
    weights.symlink_to("/dev/zero")
    assert "not beside it" in reason()
    assert decode_record(bytes.fromhex(closed.file().record)).closing
