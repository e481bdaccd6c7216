"""The hit: key, lookup, guards, launch; in Python as the law reads and in `csrc/` the same for speed. It knows no
backend and decides nothing: what it cannot answer is a miss."""
