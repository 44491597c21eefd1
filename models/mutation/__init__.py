"""Model variants: recorded graph changes that can be replayed on the base model."""
