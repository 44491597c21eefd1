"""Runs models on OpenVINO, a second library of kernels for CPUs, through its C interface."""
