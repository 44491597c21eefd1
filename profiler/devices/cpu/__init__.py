"""The CPU of this machine."""
