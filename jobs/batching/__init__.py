"""What the job `batch` is made of: plans, prices, schedules, rivals, and the check of what is written."""
