"""Passes over vectors: exact sums, CenteredClip, and the compiled loops under both.

`exact` and `centered_clip` are the readable reference, `fast` is what peers run, and `kernels` picks a loop: numba's on a CPU
(`loops`, for vectors of `LARGE` numbers or more), PyTorch's operations on an accelerator (`on_device`), or Triton's. Where peers
agree on bits, all give the same; where a tolerance decides, all are right to 10⁻¹²; bits do not depend on the number of threads.

`blocks` defines vectors in few bytes, with loops and operations for devices of its own.

It knows nothing of the rest of Troth but how threads share work.
"""
