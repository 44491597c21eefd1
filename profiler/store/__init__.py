"""What was measured, kept between runs."""
