"""cuDNN: graphs of operations, plans for them, and which plan runs which kernel."""
