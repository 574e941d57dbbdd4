"""What `sckn demo` shows: the models of the package on a photograph, and a small network that learns digits."""
