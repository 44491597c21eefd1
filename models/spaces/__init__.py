"""Search spaces: a base model, and mutators that vary it."""
