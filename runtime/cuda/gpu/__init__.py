"""One GPU through CuPy: memory, streams, events and captures, arrays of other libraries, and what fails."""
