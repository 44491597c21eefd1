"""The cost of a model on a device, and its task."""
