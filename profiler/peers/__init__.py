"""Other runtimes, measured beside ours."""
