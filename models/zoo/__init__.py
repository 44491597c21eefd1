"""Builders of the benchmark networks, one file per network."""
