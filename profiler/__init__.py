"""Measures stages and whole models on a device, and keeps the latencies."""
