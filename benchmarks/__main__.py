"""`make bench`: run all benchmarks, print their tables, and keep them in benchmarks/results.md."""

import platform
from pathlib import Path

import torch

from benchmarks import centered_clip, kernels, simulation


def main() -> None:
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}"
    title = f"# Results\n\nWritten by `make bench` on {machine}."
    sections = [title, centered_clip.run(), kernels.run(), simulation.run()]
    report = "\n\n".join(sections) + "\n"
    Path(__file__).with_name("results.md").write_text(report, encoding="utf-8")
    print(report)


main()
