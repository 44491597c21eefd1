"""A pool of workers: jobs submit tasks, and take results as they complete, from this machine or from a Ray cluster."""
