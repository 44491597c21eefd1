"""Samplers of a study: one file each."""
