"""A run's history: certified records, one after the other, and the journal that holds them (SPEC U2, B2, E5)."""
