"""Measures latencies: statistics of samples, interleaving, interference, waiting for idle processes."""
