"""One connection to every member, and the protocol's end of it."""
