"""Lies about gradients: rows that colluders send in place of those they computed.

Each attack is a frozen set of options. It may poison the batch before the gradient is computed, and it forges the rows
that the colluders send, knowing everything: their own gradients, those of all honest peers, and the defence. Honest code
knows nothing of it. A new attack is a class in one of these files and a row in `ATTACKS`.
"""
