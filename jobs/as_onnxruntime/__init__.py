"""What onnxruntime's users know, on models that run by a schedule."""
