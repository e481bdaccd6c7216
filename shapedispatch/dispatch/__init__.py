"""What becomes of a call that is no hit: look up, build, time, fall back, remember; and what a user may ask. How a
variant is made is for the backends, how it is judged for `autotune`. One lock is held to build and to time."""
