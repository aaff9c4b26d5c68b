"""What a peer tells: the screen, its log, numbers for machines, its events on disk, its status."""
