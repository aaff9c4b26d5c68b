"""Randomness of ordinary models, made to follow from seeds: first values, dropout and noise; and a watch on the rest."""
