"""Other runtimes, which schedules are compared with."""
