"""Attacks, for files and scripts of one's own: `class Mine(GradientAttack)`. They live in `troth.workshop.attacks`.

`ATTACKS` is the table of all of them by the names that `simulate` knows; `make_attack` reads a spec like `sign-flip:scale=10`.
"""

from troth.workshop.attacks import *  # noqa: F403
from troth.workshop.attacks import __all__ as __all__
