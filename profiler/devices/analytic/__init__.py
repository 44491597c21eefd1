"""Simulated GPUs, whose latencies a model computes (docs/analytic-model.md)."""
