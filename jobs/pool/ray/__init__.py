"""A transport over Ray: the driver's end, the child process, and the actors."""
