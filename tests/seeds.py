"""How many seeds a test draws: enough for every day, and more with TROTH_SEEDS=many (`make test-seeds`)."""

import os


def drawn(few: int, *, many: int) -> range:
    """Numbers from 0 on: so few as show the same nearly always, or as many as were ever played here."""
    return range(many if os.environ.get("TROTH_SEEDS") == "many" else few)
