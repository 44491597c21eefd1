"""Peers: other runtimes, which are measured beside the runtime of this project."""
