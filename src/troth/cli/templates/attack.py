"""An attack of your own.

troth simulate --byzantine 3 --attack my_attack.py
troth simulate --byzantine 3 --attack my_attack.py:Drag:strength=5
troth swarm --peers 5 --byzantine 1 --attack my_attack.py
"""

from dataclasses import dataclass

from torch import Tensor

from troth.attacks import GradientAttack


@dataclass(frozen=True)
class Drag(GradientAttack):
    """pull the model back the way it came, `strength` times as hard as the honest peers push"""

    strength: float = 2.0  # an option

    def __post_init__(self) -> None:
        if self.strength <= 0:
            raise ValueError(f"strength must be positive, got {self.strength}")

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        """Rows that the B liars send, in place of the gradients that they computed.

        Liars know everything: `honest_HD` holds the gradients of all honest peers (in a swarm, guesses at them).
        """
        return (honest_HD.mean(dim=0) * -self.strength).expand_as(own_BD)

    # Instead of `forge`, or beside it:
    #
    #   def forge(self, own, honest, *, layout)    is told where each parameter stands: layout.slices["0.weight"]
    #   def poison(self, task, batch)      changes the batch that a liar computes its gradient on
    #   def begin(self, seed)              gives the forging function of one run, for attacks with a memory
    #   behaviour = MyChannel              lies in the protocol too: see troth/workshop/attacks/roles.py
