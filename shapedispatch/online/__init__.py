"""Judging on the calls themselves: what a real call took, which candidate the next one runs, when that is over."""
