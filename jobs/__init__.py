"""What a user asks for, for any device."""
