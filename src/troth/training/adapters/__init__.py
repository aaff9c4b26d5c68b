"""Tasks out of models of other libraries, which are imported only when one is made: optional extras."""
