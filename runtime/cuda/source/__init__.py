"""Text of CUDA C++: what the sources of kernels have in common."""
