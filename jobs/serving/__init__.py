"""Several models that share the cores of one process."""
