"""Variants of a model: recorded changes of its graph, by which each is made again from the model it is a variant of."""
