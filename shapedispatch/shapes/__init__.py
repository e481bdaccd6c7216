"""Names and sizes of dims: declared axes, hints, buckets. Only integers: no tensor is looked at here."""
