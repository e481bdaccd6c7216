"""What happens to the whole interpreter: interrupts, forks, collections of garbage, cores that it may use. Nothing of
torch."""
