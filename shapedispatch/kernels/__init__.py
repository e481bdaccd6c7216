"""Triton kernels as a backend: the key of a launch, configs searched per hint, variants of one launch. What Triton
itself is asked stands in `runtime`; nothing here times anything."""
