"""A pool of workers on the machines of a cluster."""
