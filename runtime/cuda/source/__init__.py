"""CUDA C++ shared by the sources of kernels."""
