"""Measures stages on a device and keeps what was measured."""
