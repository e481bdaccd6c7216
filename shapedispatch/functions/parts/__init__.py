"""A graph in parts, each with one result that has a gradient: where it is cut.
How they run one after the other."""
