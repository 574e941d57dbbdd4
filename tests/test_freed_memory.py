import platform
import subprocess
import sys

import pytest

# Pages that the system has to find while a tensor of 64 MiB is made and freed sixteen times.
PROGRAM = """
import resource, sys, torch
from sckn.freed_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
for _ in range(16):
    torch.full((2**24,), 1.0)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is of glibc")
def test_memory_that_was_freed_is_used_again_without_page_faults() -> None:
    def faults(choice: str) -> int:
        done = subprocess.run([sys.executable, "-c", PROGRAM, choice], capture_output=True, text=True, check=True)
        return int(done.stdout)

    # the first time, and where the block lies elsewhere once more
    assert faults("keep") < faults("leave") / 3
