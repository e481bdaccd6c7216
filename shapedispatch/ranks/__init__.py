"""Ranks: what the processes of one distributed job know of each other's choices, and how they come to one answer."""
