"""Devices that schedules are made for: a folder for each kind."""
