"""Training states on their way in from outside: from a file, or in chunks from other members."""
