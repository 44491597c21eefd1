"""Timing: samples and what they say, alternatives in turn, a quiet machine."""
