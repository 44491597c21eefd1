"""Measures latencies: statistics of samples, alternatives in turn, waiting until the machine is quiet."""
