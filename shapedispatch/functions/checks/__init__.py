"""Whether compiled code computes what its graph says: what both are run on, and what is right."""
