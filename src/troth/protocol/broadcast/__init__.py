"""Agreement on who announced what, and the exchange of blobs, on a network that delays, loses and lies."""
