"""What schedules are found for: one folder a kind of device."""
