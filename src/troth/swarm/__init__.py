"""Many real processes on one machine, some of them attackers."""
