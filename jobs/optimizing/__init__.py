"""The steps of `optimize`: comparison of whole models, verdict, checks and result."""
