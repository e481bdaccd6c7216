"""Candidates to a winner: run on copies, compare results, time, choose. It keeps no state and takes no lock; what
becomes of a winner is for `dispatch` to say."""
