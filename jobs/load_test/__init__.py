"""Requests that arrive by themselves, sent to several models in the ways that a service could run them."""
