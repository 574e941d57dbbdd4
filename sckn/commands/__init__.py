"""The commands of `sckn`, one file each: thin functions that call the library and print. `sckn/cli.py` puts them together."""
