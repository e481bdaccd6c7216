"""Work for processes of our own, which nobody waits for: what is ordered, by what it is worth, and who does it."""
