"""Sends open-loop requests to several models, in the ways that a service could run them."""
