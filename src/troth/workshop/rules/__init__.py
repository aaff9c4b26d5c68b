"""Aggregation rules of prior work: P vectors in, one vector out, and nothing about networks. `docs/defences` has a page for each.

`table` has all of them by name and binds parameters; `memory` is for those that remember.
"""
