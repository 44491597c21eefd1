"""Keeps measurements between runs."""
