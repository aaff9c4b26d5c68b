"""An aggregation rule of your own, with a trusted server, beside the rules of prior work.

troth simulate --byzantine 3 --attack alie --defence my_rule.py
troth simulate --byzantine 3 --attack alie --defence my_rule.py:middle_mean:spare=1
"""

from torch import Tensor


def middle_mean(vectors_PD: Tensor, *, byzantine: int, spare: int = 0) -> Tensor:
    """the mean of the values between the extremes of every coordinate

    `vectors_PD` has a row for each of the P peers. A rule that names `byzantine` is given the number of liars, one that names
    `tau` the clipping radius, one that names `layout` where each parameter stands (`layout.slices["0.weight"]`); other
    parameters are options. It must give one finite vector, and the same for the same rows.
    """
    leave_out = min(byzantine + spare, (len(vectors_PD) - 1) // 2)
    sorted_PD = vectors_PD.sort(dim=0).values
    return sorted_PD[leave_out : len(vectors_PD) - leave_out].mean(dim=0)
