"""Models that are loaded and ready to run."""
