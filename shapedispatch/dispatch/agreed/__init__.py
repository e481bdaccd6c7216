"""A miss where ranks agree: what runs is what all of them run, and what is learned is kept for the next `sync`."""
