"""The command line, its tables and pictures. Nothing imports it."""
