"""What identifies a call, its code and the machine: here stands the key law. What is remembered under a key stands
in `hit`."""
