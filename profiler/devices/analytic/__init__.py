"""GPUs that are not attached: latencies of stages are computed by a model, see docs/analytic-model.md."""
