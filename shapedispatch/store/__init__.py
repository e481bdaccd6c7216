"""Choices on disk, shared by processes: a damaged or forged row costs speed and never an answer. What a row is
worth for a call is for `dispatch` to judge."""
