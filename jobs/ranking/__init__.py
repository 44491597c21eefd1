"""What a model costs on a device, and tables of many models."""
