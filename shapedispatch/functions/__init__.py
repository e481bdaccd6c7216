"""PyTorch functions as a backend: which builds a call wants, made on fake tensors, shared, refused with reasons.
How code comes from a function stands in `compile`, when it is valid in `guards`; nothing here times anything."""
