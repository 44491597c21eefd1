"""The jobs that a user asks for, each a function that works on any device: `optimize`, `run`, `explore` and others."""
