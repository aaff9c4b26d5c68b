"""The protocol of one training step, without sockets, clocks, threads, logging or files. Empty until it is built."""
