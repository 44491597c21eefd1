"""From a model and a schedule to the checked execution plan; needs no GPU."""
