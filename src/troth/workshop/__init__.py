"""What lies, simulates, measures and draws. An honest peer imports none of it.

Only `api`, `cli` and `testing` do, when they are asked to.
"""
