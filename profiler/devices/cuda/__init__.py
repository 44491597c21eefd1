"""NVIDIA GPUs that are attached to this machine."""
