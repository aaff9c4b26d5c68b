"""Other hardware computes other bits: imitating it, recognising it, and measuring how far off it is (SPEC D3)."""
