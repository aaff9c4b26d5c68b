"""The rates of DESIGN §9 with what they hide, and the step sizes and radii that belong to them.

Notation: n peers, δ the share of liars, m validators, σ the norm of the noise, L = 1 the smoothness, Δ = f(x₀) − f*,
R = ‖x₀ − x*‖. Rates are upper bounds up to constants; the constants taken here are 1, or what the step size makes of them:

| method | iterations | step size γ |
| --- | --- | --- |
| Troth, non-convex, ‖∇f‖ ≤ ε | `Δ/ε² + Δσ²/(nε⁴) + nδσ²/(mε²)` | `min(1/4, ε²n/σ²)` |
| Troth, convex, f − f* ≤ ε | `R²/ε + R²σ²/(nε²)`, without liars | `min(1/4, εn/σ²)` |
| Troth, strongly convex, f − f* ≤ ε | `n/m` steps until a liar is audited, from the minimum | `1/4` |
| centred clipping with worker momentum | `Δ/ε² + 16·(Δσ²/(nε⁴) + Δδσ²/ε⁴)` | `min(1/8, ε²/(16σ²(1/n + δ)))`, β = 1 − 8γ |
| SafeguardSGD | `Δσ²/(nε⁴) + Δδ²σ²/ε⁴` | `min(1/4, ε²/(σ²(1/n + δ²)))` |

The 8 is the theorem's (Karimireddy et al. 2021). Its other constants are larger than this 16, which is what it takes for the
bias of clipped momenta, about 4γδσ²/(1 − δ) in square where τ is √((1 − δ)/δ) times their spread, to stay below ε²/4. The
other step sizes leave noise of about ε²/2 at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True)
class Setting:
    """One point of an experiment, in the letters of the theorems."""

    peers: int
    byzantine: int
    validators: int
    sigma: float
    epsilon: float
    gap: float  # Δ
    distance: float  # R

    @property
    def share(self) -> float:
        return self.byzantine / self.peers


@dataclass(frozen=True)
class Choice:
    """What a theorem prescribes: step size, clipping radius, worker momentum; and how many iterations it promises."""

    rate: float
    tau: float
    iterations: float
    momentum: float = 0.0


def troth(at: Setting) -> Choice:
    """BTARD-SGD. Until a liar is banned, n/m steps on average, clipping lets it shift the mean by some δσ² in square."""
    lies = at.peers * at.share * at.sigma**2 / (at.validators * at.epsilon**2)
    rate = min(1 / 4, at.epsilon**2 * at.peers / at.sigma**2)
    return Choice(rate, at.sigma * _radius(at.share), _smooth(at) + _noise(at, 1 / at.peers) + lies)


def troth_convex(at: Setting) -> Choice:
    squared = at.distance**2
    promised = squared / at.epsilon + squared * at.sigma**2 / (at.peers * at.epsilon**2)
    return Choice(min(1 / 4, at.epsilon * at.peers / at.sigma**2), at.sigma * _radius(at.share), promised)


def troth_strongly_convex(at: Setting) -> Choice:
    return Choice(1 / 4, at.sigma * _radius(at.share), at.peers / at.validators)


def clipped_momentum(at: Setting) -> Choice:
    """Karimireddy et al. 2021. Averaged momenta have variance σ²(1 − β)/(1 + β), and the radius follows them."""
    noise = 1 / at.peers + at.share
    rate = min(1 / 8, at.epsilon**2 / (16 * at.sigma**2 * noise))
    beta = 1 - 8 * rate
    spread = at.sigma * sqrt((1 - beta) / (1 + beta))
    return Choice(rate, spread * _radius(at.share) / 3, _smooth(at) + 16 * _noise(at, noise), beta)


def safeguard(at: Setting) -> Choice:
    """Allen-Zhu et al. 2021; it uses no radius."""
    noise = 1 / at.peers + at.share**2
    return Choice(min(1 / 4, at.epsilon**2 / (at.sigma**2 * noise)), 1.0, _noise(at, noise))


METHODS: dict[tuple[str, str], Callable[[Setting], Choice]] = {
    ("troth", "non-convex"): troth,
    ("troth", "convex"): troth_convex,
    ("troth", "strongly-convex"): troth_strongly_convex,
    ("centered-clip-momentum", "non-convex"): clipped_momentum,
    ("safeguard", "non-convex"): safeguard,
}


def _radius(share: float) -> float:
    """τ/σ = 3√((1 − δ)/δ), or 2 without liars. Liars at the rim shift the clipped mean by δτ/(1 − δ), in square 9δσ²/(1 − δ).

    The 3 is about the constant of the analysis that BTARD builds on (Karimireddy et al. 2021, 4/3^¼).
    """
    return 3 * sqrt((1 - share) / share) if share else 2.0


def _smooth(at: Setting) -> float:
    return at.gap / at.epsilon**2


def _noise(at: Setting, factor: float) -> float:
    return at.gap * at.sigma**2 * factor / at.epsilon**4
