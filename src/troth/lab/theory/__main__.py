"""`python -m troth.lab.theory results/theory [folder of figures]`: print fitted against predicted exponents."""

import sys
import tomllib
from pathlib import Path

from troth.lab.sweeps.store import RESULTS, SWEEP, read_lines
from troth.lab.theory.fits import fits

if __name__ == "__main__":
    results, *figures = map(Path, sys.argv[1:])
    fit = tomllib.loads((results / SWEEP).read_text(encoding="utf-8"))["fit"]
    sys.stdout.write(fits(read_lines(results / RESULTS, cut=True), fit, *figures).text())
