"""GPUs that are attached."""
