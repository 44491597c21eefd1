"""Lowers schedules to execution plans and runs them."""
