"""What workers can be asked to do, a file for each kind of work."""
