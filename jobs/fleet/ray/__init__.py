"""Ray as a transport: a child process that alone imports Ray, its workers, and the driver's end of its pipes."""
