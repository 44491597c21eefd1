"""Batches equal operators of several models into one; a file for each kind of operator."""
