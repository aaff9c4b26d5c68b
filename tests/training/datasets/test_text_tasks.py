"""`char-transformer` and `albert` on a small text."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from troth.crypto import derive, stream
from troth.specs import SpecError
from troth.training import Problem, TaskError, check_pure, make_task
from troth.training.datasets import END, MASK, START
from troth.training.determinism import files_read
from troth.training.tasks.text import Albert, CharTransformer
from troth.workshop.simulation import ProtocolSimulation, Scenario

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SMALL = "layers=1,width=8,heads=2,length=12,batch_size=3"
TINY = "size=tiny,length=24,batch_size=3,vocabulary=300"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    letters = stream(0, "text").integers(26, 4000) + ord("a")
    letters[::6] = ord(" ")
    (tmp_path / "text.txt").write_bytes(letters.astype(np.uint8).tobytes())
    return tmp_path / "text.txt"


def specs(file: Path) -> list[str]:
    return [f"char-transformer:data={file},{SMALL}", f"albert:data={file},{TINY}"]


@pytest.mark.long
def test_both_are_pure(file: Path) -> None:
    pytest.importorskip("transformers")
    for spec in specs(file):
        task = make_task(spec)
        problem = Problem(task)
        check_pure(task, problem)
        assert problem.why_one_by_one == ""
        assert list(task.data_files()) == [file]
        assert problem.evaluate(problem.initial(0))["loss"] > 1


def test_what_is_unpacked_into_the_cache_need_not_be_declared(file: Path) -> None:
    packed = file.with_suffix(".gz")
    packed.write_bytes(gzip.compress(file.read_bytes()))
    task = make_task(f"char-transformer:data={packed},{SMALL}")
    check_pure(task)
    assert list(files_read(task)) == [str(packed.resolve())]


@pytest.mark.parametrize("device", DEVICES)
def test_batches_have_the_same_bytes_on_every_device(device: str, file: Path) -> None:
    for spec in specs(file):
        task = make_task(spec)
        here, there = task.batch(stream(3, "batch")), task.batch_on(torch.device(device), stream(3, "batch"))
        for name in here:
            assert there[name].device.type == device
            assert torch.equal(here[name], there[name].cpu())


def test_sizes() -> None:
    pytest.importorskip("transformers")
    with torch.device("meta"):
        transformer, large = CharTransformer(Path()).model(), Albert(Path(), size="large").model()
    assert sum(p.numel() for p in transformer.parameters()) == 10_893_312
    assert 17e6 < sum(p.numel() for p in large.parameters()) < 19e6


def test_the_next_byte_is_predicted_from_earlier_ones_alone(file: Path) -> None:
    task = make_task(f"char-transformer:data={file},{SMALL}")
    batch = task.batch(stream(1, "batch"))
    assert torch.equal(batch["text"][:, 1:], batch["labels"][:, :-1])
    model, later = task.model().eval(), batch["text"].clone()
    later[:, 7:] = 120
    with torch.no_grad():
        before, after = model(batch["text"]), model(later)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_training_and_evaluation_see_different_parts(file: Path) -> None:
    task = CharTransformer(file, length=12)
    whole = file.read_bytes()
    for k in range(50):
        for window in task.batch(stream(k, "batch"))["text"]:
            assert whole.find(bytes(window.tolist())) <= 3600 - 13
        for window in task.held_out_batch(stream(k, "batch"))["text"]:
            assert whole.find(bytes(window.tolist())) >= 3600


def test_masked_words_and_order(file: Path) -> None:
    task = Albert(file, batch_size=400, length=24, vocabulary=300, size="tiny")
    batch = task.batch(stream(0, "batch"))
    text = task.text().rows(np.arange(len(task.text())), torch.device("cpu"))
    words, places, labels, swapped = (batch[name] for name in ("words", "places", "labels", "swapped"))
    assert words.shape == (400, 23)
    assert (words[:, 0] == START).all()
    assert (words[:, 11] == END).all()
    assert (words[:, 22] == END).all()
    assert all(len(set(row.tolist())) == 3 for row in places), "three different places of twenty"
    assert set(places.flatten().tolist()) == {*range(1, 11), *range(12, 22)}
    assert 150 < int(swapped.sum()) < 250
    standing = words.gather(1, places)
    assert (standing == MASK).double().mean() == pytest.approx(0.8, abs=0.04)
    assert (standing == labels).double().mean() == pytest.approx(0.1, abs=0.03)
    whole = words.scatter(1, places, labels)
    first, second = whole[:, 1:11], whole[:, 12:22]
    for a, b, turned in zip(first, second, swapped.tolist(), strict=True):
        segment = torch.cat([b, a] if turned else [a, b])
        assert (text.unfold(0, 20, 1) == segment).all(dim=1).any(), "two segments that follow each other"


def test_albert_is_transformers_own_model(file: Path) -> None:
    """Its parts are called one by one, without the mask that its own `forward` makes: the numbers are the same."""
    from transformers import AlbertConfig, AlbertForPreTraining

    ours = Albert(file, size="tiny", vocabulary=300, length=32).model().eval()
    config: Any = ours.config
    options = {**config.to_dict(), "hidden_act": "gelu_new", "attn_implementation": "eager"}
    theirs = AlbertForPreTraining(AlbertConfig(**options)).eval()
    theirs.load_state_dict(ours.state_dict())
    words, places = torch.randint(6, 300, (3, 32)), torch.randint(0, 32, (3, 5))
    second = (torch.arange(32) > 15).long().expand(words.shape)
    found, order = ours(words, places)
    expected = theirs(input_ids=words, token_type_ids=second)
    torch.testing.assert_close(found, expected.prediction_logits[torch.arange(3)[:, None], places])
    torch.testing.assert_close(order, expected.sop_logits)


@pytest.mark.long
def test_albert_learns(file: Path) -> None:
    pytest.importorskip("transformers")
    file.write_bytes(b"one two three four five six seven eight nine ten " * 100)
    run = ProtocolSimulation(
        Scenario(task=f"albert:data={file},{TINY}", peers=3, steps=40, rate=0.02, evaluate_every=40, tau=10.0)
    )
    before = run.problem.evaluate(run.problem.initial(derive(0, "model")))["masked_words_loss"]
    (after,) = [report.metrics for report in run.steps() if report.metrics]
    assert after["masked_words_loss"] < before - 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("char-transformer:data=x,width=10,heads=3", "width must be a multiple of heads, got 10 and 3"),
        ("char-transformer:data=x,layers=0", "layers must be at least 1"),
        ("albert:data=x,size=huge", "size is one of tiny, base, large, got 'huge'"),
        ("albert:data=x,vocabulary=100", "vocabulary must be from 260 to 65,536, got 100"),
        ("albert:data=x,length=8", "length must be at least 16, got 8"),
    ],
)
def test_mistakes(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_task(spec)


def test_a_text_that_is_too_short(file: Path) -> None:
    file.write_bytes(b"few words")
    with pytest.raises(TaskError, match="is too short for sequences of 12: take a longer text, or length=…"):
        make_task(f"char-transformer:data={file},{SMALL}").batch(stream(0, "batch"))


def test_a_mislabelled_batch_asks_for_the_next_word_and_the_other_order(file: Path) -> None:
    task = Albert(file, batch_size=3, length=24, size="tiny", vocabulary=300)
    batch = task.batch(stream(3, "batch"))
    batch["labels"][0, 0] = 299
    wrong = task.mislabelled(batch)
    assert wrong["labels"][0, 0] == 0
    assert torch.equal(wrong["labels"].flatten()[1:], batch["labels"].flatten()[1:] + 1)
    assert torch.equal(wrong["swapped"], 1 - batch["swapped"])
    assert torch.equal(wrong["words"], batch["words"])
    assert set(wrong) == set(batch)
