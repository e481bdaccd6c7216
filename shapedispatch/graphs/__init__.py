"""CUDA graphs of compiled code: what may be recorded, what a replay reads and gives, and what it all holds."""
