"""Parts of a model by themselves, as they are and with more in them: wider, with larger kernels, with a branch more."""
