"""An attack of one's own, against the plain mean, the median and the protocol.

python own_attack.py
troth simulate --byzantine 3 --attack own_attack.py
"""

from dataclasses import dataclass

from torch import Tensor

import troth
from troth.attacks import GradientAttack

# B colluders, H honest peers, D coordinates


@dataclass(frozen=True)
class Drag(GradientAttack):
    """pull the model back, `strength` times as hard as the honest peers push it forward"""

    strength: float = 20.0

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        return (honest_HD.mean(dim=0) * -self.strength).expand_as(own_BD)


if __name__ == "__main__":
    troth.testing.check_attack(Drag())
    for defence in ("mean", "median", "troth"):
        run = troth.simulate("digits", peers=8, byzantine=3, attack=Drag(), attack_start=5, steps=40, defence=defence)
        result = run.run()
        banned = f", banned: {', '.join(ban.peer for ban in result.bans)}" if result.bans else ""
        print(f"{defence:<8}{result.metrics['accuracy']:.1%}{banned}")
