"""Which operators of several models become one: similar models, the operators that fit, and what it is worth."""
