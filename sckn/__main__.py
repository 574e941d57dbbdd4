"""python -m sckn, which is also how torchrun starts it: torchrun --nproc-per-node 2 -m -- sckn train ..."""

from sckn.cli import main

if __name__ == "__main__":
    main()
