"""Several models as one: their disjoint union, in which what is equal is stored and computed once."""
