"""How gradients are called for: how many in one call, and as recorded graphs."""
