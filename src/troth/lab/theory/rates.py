"""The three rates of DESIGN §9 with the constants that they hide, and the step sizes that belong to them.

Notation: n peers, δ the share of liars, m validators, σ the norm of the noise, L = 1 the smoothness, Δ = f(x₀) − f*, ε the
norm of the gradient to be reached. The rates are upper bounds up to constants; those taken here are 1.

| method | iterations | step size γ |
| --- | --- | --- |
| Troth | `Δ/ε² + Δσ²/(nε⁴) + nδσ²/(mε²)` | `min(1/4, ε²n/σ²)` |
| centred clipping with worker momentum | `Δ/ε² + Δσ²/(nε⁴) + Δδσ²/ε⁴` | `min(1/8, ε²/(σ²(1/n + δ)))`, β = 1 − 8γ |
| SafeguardSGD | `Δσ²/(nε⁴) + Δδ²σ²/ε⁴` | `min(1/4, ε²/(σ²(1/n + δ²)))` |

Each step size makes the noise that is left at the end, γσ²/2 times the factor in the rate, half of ε².
"""

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
    """BTARD-SGD. While a liar is not banned, centred clipping lets it shift the mean by δσ² in square; n/m steps on average."""
    noise = 1 / at.peers
    lies = at.peers * at.share * at.sigma**2 / (at.validators * at.epsilon**2)
    rate = min(1 / 4, at.epsilon**2 / (at.sigma**2 * noise))
    return Choice(rate, at.sigma * _radius(at.share), _smooth(at) + _noise(at, noise) + lies)


def clipped_momentum(at: Setting) -> Choice:
    """Karimireddy et al. 2021: momenta have variance (1 − β)σ²/(1 + β), and the radius follows them."""
    noise = 1 / at.peers + at.share
    rate = min(1 / 8, at.epsilon**2 / (at.sigma**2 * noise))
    beta = 1 - 8 * rate
    spread = at.sigma * sqrt((1 - beta) / (1 + beta))
    return Choice(rate, 2 * spread * _radius(at.share), _smooth(at) + _noise(at, noise), beta)


def safeguard(at: Setting) -> Choice:
    """Allen-Zhu et al. 2021; the radius is not used."""
    noise = 1 / at.peers + at.share**2
    return Choice(min(1 / 4, at.epsilon**2 / (at.sigma**2 * noise)), 1.0, _noise(at, noise))


METHODS = {"troth": troth, "centered-clip-momentum": clipped_momentum, "safeguard": safeguard}


def _radius(share: float) -> float:
    """τ/σ = √((1 − δ)/δ): liars at the rim shift the clipped mean by δτ/(1 − δ), in square δσ²/(1 − δ); 2 without liars."""
    return sqrt((1 - share) / share) if share else 2.0


def _smooth(at: Setting) -> float:
    return at.gap / at.epsilon**2


def _noise(at: Setting, factor: float) -> float:
    return at.gap * at.sigma**2 * factor / at.epsilon**4
