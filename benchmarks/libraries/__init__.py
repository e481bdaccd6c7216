"""Other packages' own tests with their Triton kernels behind the dispatcher, and what their operations cost a host."""
