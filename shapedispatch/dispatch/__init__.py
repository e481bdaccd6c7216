"""What becomes of a call that is no hit: look up, tune, fall back, remember, all under one lock; and what a user
may ask. How a variant is made is the backends' business, how it is judged that of `autotune`."""
