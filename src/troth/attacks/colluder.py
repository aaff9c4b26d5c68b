"""A colluder's conduct in the protocol: it follows the phases, but never helps to convict one of its own."""

from collections.abc import Callable, Mapping

from troth.crypto import Context, Digest, PeerId, Signature
from troth.protocol.channel import Channel, PartParcels
from troth.protocol.messages import Accuse, Announced, Ballot, Message, Verdict, Vote
from troth.protocol.parts import Parcel
from troth.protocol.run import Run


class ColludingChannel:
    """Wraps a member's channel: drops accusations of fellow colluders, and votes against whoever accuses them."""

    def __init__(self, honest: Channel, colluders: frozenset[PeerId], run: Run, active: Callable[[int], bool]) -> None:
        self._honest = honest
        self._colluders = colluders
        self._run = run
        self._active = active  # whether the coalition attacks in this step

    async def announce(self, context: Context, message: Message) -> Mapping[PeerId, Announced]:
        if isinstance(message, Accuse):
            kept = tuple(a for a in message.accusations if a.target not in self._colluders)
            message = Accuse(kept, message.coin)
        elif isinstance(message, Vote):
            message = Vote(tuple(self._shielding(ballot) for ballot in message.ballots))
        return await self._honest.announce(context, message)

    def _shielding(self, ballot: Ballot) -> Ballot:
        if ballot.target not in self._colluders:
            return ballot
        return Ballot(ballot.accuser, ballot.target, ballot.kind, ballot.part, Verdict.ACCUSER)

    async def scatter(self, context: Context, parcels: Mapping[int, tuple[PeerId, Parcel]]) -> PartParcels:
        return await self._honest.scatter(context, parcels)

    async def gather(
        self, context: Context, mine: Mapping[int, bytes], wanted: Mapping[int, Digest]
    ) -> Mapping[int, bytes]:
        return await self._honest.gather(context, mine, wanted)

    async def lay_open(self, context: Context, mine: PartParcels, wanted: frozenset[int]) -> PartParcels:
        return await self._honest.lay_open(context, mine, wanted)

    async def sign_record(self, context: Context, signature: Signature) -> Mapping[PeerId, Signature]:
        return await self._honest.sign_record(context, signature)
