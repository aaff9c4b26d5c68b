"""`troth watch`, `troth report`, `troth status`: commands that look at a run's folder, and `--page` of those that make one."""
