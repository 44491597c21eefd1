"""Command line: one file per command; parsing and printing only."""
