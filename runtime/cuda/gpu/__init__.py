"""A GPU through CuPy: memory, streams, events, captures, arrays of other libraries, errors."""
