"""CPU executors over onnxruntime kernels."""
