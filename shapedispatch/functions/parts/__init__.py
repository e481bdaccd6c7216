"""A graph in parts, each with one result that has a gradient at most: where it is cut, and how they run one by one."""
