"""What every part of the protocol shares: the run, its members, records, roles, coins, and the interfaces to the outside."""
