"""Helpers that several commands share."""
