"""The Python interface: simulating, joining and checking runs from a program of one's own."""
