"""The core that all rooms share: the run, its members, records, roles, coins, and the interfaces to the outside."""
