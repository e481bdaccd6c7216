"""A graph in parts, so that a backward may begin at any of its results: where it is cut, and how the parts run."""
