"""Parts of the job `batch`: plans, prices, methods of running, comparison and checks."""
