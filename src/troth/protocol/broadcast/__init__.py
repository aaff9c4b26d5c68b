"""Agreement on announcements, and the exchange of blobs, on a network that delays, loses and lies."""
