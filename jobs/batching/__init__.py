"""What the job `batch` is made of: plans, prices, schedules, methods, and the check of what is written."""
