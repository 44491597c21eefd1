"""Runs lowered plans on a GPU."""
