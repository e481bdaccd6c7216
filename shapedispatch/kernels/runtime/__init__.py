"""One compiled kernel: what wraps it, compiling, what it writes, launching, unloading; and Triton's private names.
Which configs compete is not known here."""
