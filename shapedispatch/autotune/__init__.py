"""Candidates to a winner: run on copies, compare results, time, choose. It remembers no choice and takes no lock; what
becomes of a winner is for `dispatch` to say."""
