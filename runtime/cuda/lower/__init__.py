"""Lowers a model and a schedule to a checked execution plan; needs no GPU."""
