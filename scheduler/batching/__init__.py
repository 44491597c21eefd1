"""Batching: which operators of several models run as one."""
