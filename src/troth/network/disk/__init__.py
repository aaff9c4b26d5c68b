"""Files that outlive the process: journal, signed slots, checkpoints, audit records."""
