"""One search on many machines: work is leased to workers, and what they measure comes back to one profile database."""
