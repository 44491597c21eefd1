"""Pictures of schedules and of measured latencies, as text and as SVG."""
