"""Worlds with liars, losses and drop-outs, drawn from a seed, played in virtual time, and held to the protocol's promises."""
