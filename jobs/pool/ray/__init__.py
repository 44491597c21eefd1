"""A transport over Ray: the driver's end, the child process that alone imports Ray, and the actors."""
