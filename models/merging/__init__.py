"""Merges convolutions, or products, of one input into one operator: the rule, the rewrite, and its inverse."""
