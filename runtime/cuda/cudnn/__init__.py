"""cuDNN graphs, plans, and the choice between plans."""
