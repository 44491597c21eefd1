"""What a device has to spare in the stages of a schedule; used by `jobs/capacity.py`."""
