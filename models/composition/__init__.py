"""Composes several models into one: their disjoint union, with equal parts stored and computed once."""
