"""The protocol of one training step, without sockets, clocks, threads, logging or files.

SPEC.md beside this file numbers its rules; `step/step.py` is where to start reading.
"""
