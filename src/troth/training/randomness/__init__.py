"""Randomness of ordinary models, made to follow from seeds: first values, dropout and noise; gradients that race, in another way;
and a watch on the rest."""
