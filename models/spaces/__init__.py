"""Spaces of models: a base model, and mutators that say how it may vary; five of them in the box."""
