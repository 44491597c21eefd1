"""The devices that schedules are found for: a folder for each kind of device."""
