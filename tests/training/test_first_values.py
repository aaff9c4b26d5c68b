"""A module's own initialisation, from a stream: the same bits everywhere, whoever draws them."""

import math
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training.examples import Lines
from troth.crypto import blob_digest, stream
from troth.training import Problem, TaskError, first_values, make_task
from troth.training.first_values import FirstValues


def built(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    values = FirstValues(stream(seed, "initialise"))
    with values:
        module = build()
    values.check(module.named_parameters())
    return module


class Raw(nn.Module):
    """Parameters made in every way that people make them in."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(30, 40) * 0.02)
        self.b = nn.Parameter(nn.init.trunc_normal_(torch.empty(50, 50), std=0.02))
        self.c = nn.Parameter(nn.init.orthogonal_(torch.empty(6, 4)))
        self.d = nn.Parameter(torch.normal(0.0, 1.0, (3,)))
        self.e = nn.Parameter(torch.randint(0, 5, (40,)).float())
        self.f = nn.Parameter(torch.rand_like(self.d))
        self.g = nn.Parameter(torch.empty(200).bernoulli_(0.25))
        self.h = nn.Parameter(torch.randperm(5).float())
        self.i = nn.Parameter(torch.distributions.Normal(0.0, 1.0).sample((3,)))  # type: ignore[no-untyped-call]
        self.j = nn.Parameter(torch.empty(100).exponential_(2.0))
        self.k = nn.Parameter(torch.normal(torch.full((100,), 5.0), torch.full((100,), 0.1)))
        self.l = nn.Parameter(nn.init.xavier_normal_(torch.empty(4, 4), generator=torch.Generator()))
        self.register_buffer("table", torch.cos(torch.arange(5.0)))


class Plain(Raw):
    """The same, with all other draws before those of `trunc_normal_`."""

    def __init__(self) -> None:
        with patch("torch.nn.init.trunc_normal_", lambda tensor, **_: tensor.zero_()):
            super().__init__()


MODULES: list[Callable[[], nn.Module]] = [
    Raw,
    lambda: nn.TransformerEncoderLayer(8, 2, 16),
    lambda: nn.MultiheadAttention(8, 2, kdim=4, vdim=4),
    lambda: nn.LSTM(3, 4, 2),
    lambda: nn.Bilinear(3, 4, 5),
    lambda: nn.EmbeddingBag(5, 6),
    lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.PReLU()),
]


@pytest.mark.parametrize("build", MODULES)
def test_every_bit_follows_from_the_seed_and_no_generator_of_pytorchs_is_touched(
    build: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = built(build), built(build), built(build, 1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    later = built(build)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
        assert torch.equal(tensor, later.state_dict()[name])
    assert any(not torch.equal(*pair) for pair in zip(first.parameters(), other.parameters(), strict=True))


def test_distributions_are_what_was_asked_for() -> None:
    raw = built(Raw)
    of = {name: p.detach() for name, p in raw.named_parameters()}
    assert float(of["a"].std()) == pytest.approx(0.02, rel=0.1)
    assert float(of["b"].std()) == pytest.approx(0.02, rel=0.1)
    assert float(of["b"].abs().max()) <= 2
    torch.testing.assert_close(of["c"].T @ of["c"], torch.eye(4))
    assert set(of["e"].tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert 0 <= float(of["f"].min()) <= float(of["f"].max()) < 1
    assert float(of["g"].mean()) == pytest.approx(0.25, abs=0.12)
    assert sorted(of["h"].tolist()) == [0, 1, 2, 3, 4]
    assert float(of["j"].mean()) == pytest.approx(0.5, abs=0.2)
    assert float(of["k"].mean()) == pytest.approx(5, abs=0.05)


def test_bits_are_pinned() -> None:
    """On every machine: arithmetic that differs between them has no part in these. What `trunc_normal_` draws, and so all that
    is drawn after it, changed between versions of PyTorch."""
    parameters = [p for name, p in built(Plain).named_parameters() if name != "b"]
    assert (
        blob_digest(b"".join(p.detach().numpy().astype("<f4").tobytes() for p in parameters)).hex()[:16]
        == "5eb76f0c8a60f664"
    )


def test_linear_layers_keep_the_bits_that_they_had() -> None:
    """U(±1/√fan_in) from the run's stream, weights before biases: what runs of earlier versions began with."""
    first_D, draw = Problem(make_task("digits")).initial(5), stream(5, "initialise")
    pieces = [(2 * draw.uniform(n) - 1) / math.sqrt(fan) for n, fan in ((64 * 64, 64), (64, 64), (640, 64), (10, 64))]
    assert torch.equal(first_D, torch.from_numpy(np.concatenate(pieces)).float())


class Through(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor], *, again: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(function(torch.randn(4, 4)))
        if again:
            nn.init.normal_(self.weight)


class TestOperationsThatDifferBetweenMachines:
    @pytest.mark.parametrize(
        ("function", "operation"),
        [
            (torch.cos, "cos"),
            (lambda x: x @ x, "mm"),
            (lambda x: x / x.norm(), "linalg_vector_norm"),
            (lambda x: torch.zeros(4, 4).copy_(x.tanh() + 1), "tanh"),
            (lambda x: torch.cat([x, x.sin()])[:4], "sin"),
        ],
    )
    def test_are_refused_where_they_reach_a_parameter(
        self, function: Callable[[Tensor], Tensor], operation: str
    ) -> None:
        with pytest.raises(TaskError, match=rf"values of parameter 'weight' come from '{operation}'.*Task.initialise"):
            built(lambda: Through(function))

    def test_do_not_matter_where_a_parameter_is_overwritten(self) -> None:
        built(lambda: Through(torch.cos, again=True))

    @pytest.mark.parametrize("function", [lambda x: x.abs().sqrt(), lambda x: x.abs().log(), lambda x: x.exp() * 2])
    def test_have_portable_versions_where_initialisations_need_them(self, function: Callable[[Tensor], Tensor]) -> None:
        weight = built(lambda: Through(function)).weight
        drawn = torch.from_numpy(stream(0, "initialise").normal(16)).float().view(4, 4)
        assert isinstance(weight, Tensor)
        torch.testing.assert_close(weight.detach(), function(drawn))

    def test_unknown_distributions_are_refused(self) -> None:
        with pytest.raises(TaskError, match=r"model\(\) draws with 'multinomial'"):
            built(lambda: Through(lambda x: torch.multinomial(x.abs(), 2).float()))


class TestPortable:
    def test_functions_are_near_the_libraries(self) -> None:
        x = np.concatenate([np.linspace(-1, 1, 2001)[1:-1], 1 - 2.0 ** -np.arange(2, 25)])
        np.testing.assert_allclose(
            first_values.erfinv(x), torch.erfinv(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-9
        )
        assert first_values.erfinv(np.array([-1.0, 1.0])).tolist() == [-np.inf, np.inf]
        y = np.exp(np.linspace(-80, 80, 999))
        np.testing.assert_allclose(first_values.log(y), np.log(y), rtol=1e-14, atol=1e-15)
        np.testing.assert_allclose(first_values.exp(np.linspace(-80, 80, 999)), y, rtol=1e-13)
        assert first_values.log(np.array([0.0])).tolist() == [-np.inf]

    @pytest.mark.parametrize("shape", [(5, 5), (9, 4), (4, 9)])
    def test_qr(self, shape: tuple[int, int]) -> None:
        matrix = stream(0, "qr").normal(shape[0] * shape[1]).reshape(shape)
        basis, triangle = first_values.qr(matrix)
        np.testing.assert_allclose(basis @ triangle, matrix, atol=1e-12)
        np.testing.assert_allclose(basis.T @ basis, np.eye(min(shape)), atol=1e-12)


class TestInitialise:
    def test_an_override_may_use_nn_init(self) -> None:
        class Small(Lines):
            def initialise(self, model: nn.Module, draw: object) -> None:
                nn.init.normal_(next(model.parameters()), std=1e-3)

        problem = Problem(Small())
        first_D = problem.initial(0)
        torch.rand(1)
        assert torch.equal(first_D, problem.initial(0))
        assert float(first_D[:3].abs().max()) < 0.01
