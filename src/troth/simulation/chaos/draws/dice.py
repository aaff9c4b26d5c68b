"""Dice: small decisions, in order, from one random stream."""

from troth.crypto import Stream


class Dice:
    """Every call takes the next numbers of the stream: the order of calls is part of what a seed means."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def pick(self, count: int) -> int:
        return int(self.stream.integers(count, 1)[0])

    def chance(self) -> float:
        return float(self.stream.uniform(1)[0])
