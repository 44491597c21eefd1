"""Pictures of schedules and latencies."""
