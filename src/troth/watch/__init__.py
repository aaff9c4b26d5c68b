"""See a run: the page and its server, the report in one file, the view in a terminal. It reads events, and nothing else."""
