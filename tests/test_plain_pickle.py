"""The restricted unpickler: it reads what Python writes for arrays and containers, and carries out nothing else."""

import copyreg
import os
import pickle
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alarm import within
from hostile_pickles import EXTENSION, running_code, wasting_memory_or_time

from sckn.data.plain_pickle import read_plain_pickle

NOWHERE = Path("marker")
protocols = pytest.mark.parametrize("protocol", [2, 3, 4])


@protocols
def test_containers_and_numbers(protocol: int) -> None:
    numbers = [0, 1, 255, 256, 65_536, -1, 2**31, -(2**31), 2**80, True, False, None, 1.5]
    held = {"numbers": numbers, "nested": ([1, (2,)], {"a": {b"b": ()}}), "text": "naïve", b"bytes": [b"\x00\xff", b""]}
    read = read_plain_pickle(pickle.dumps(held, protocol))
    assert read == {"bytes" if key == b"bytes" else key: value for key, value in held.items()}
    assert [type(number) for number in read["numbers"]] == [type(number) for number in numbers]


@protocols
@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", ">i4", "<u8", "<f4", ">f8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays(protocol: int, dtype: str, order: Any) -> None:
    values = np.random.default_rng(0).integers(0, 2, (5, 3, 2)).astype(dtype, order=order)
    read = read_plain_pickle(pickle.dumps({"a": values, "b": [1], "c": values[:1].copy()}, protocol))
    np.testing.assert_array_equal(read["a"], values, strict=True)
    np.testing.assert_array_equal(read["c"], values[:1], strict=True)


def test_the_same_object_twice_is_read_twice() -> None:
    row = [1, 2]
    assert read_plain_pickle(pickle.dumps({"a": [row, row], "b": row}, 2)) == {"a": [row, row], "b": row}


@pytest.fixture
def registered() -> Iterator[None]:
    """A program may have registered functions under numbers, by which pickles can call them without a name."""
    copyreg.add_extension("os", "system", EXTENSION)
    yield
    copyreg.remove_extension("os", "system", EXTENSION)


@pytest.mark.usefixtures("registered")
def test_the_hostile_pickles_run_code_where_they_may(tmp_path: Path) -> None:
    """The test below would see it."""
    marker = tmp_path / "marker"
    hostile = running_code(marker)
    for name in ("os.system, protocol 2", "eval, protocol 4, held", "in an array, protocol 2, held", "INST", "OBJ", "EXT1"):
        try:
            pickle.loads(hostile[name])  # makes an empty file, and nothing else
        finally:
            assert marker.exists(), name
            marker.unlink()


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", running_code(NOWHERE))
def test_nothing_else_is_carried_out(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with within(10), pytest.raises(ValueError, match=r"expected|is not a whole pickle") as caught:
        read_plain_pickle(running_code(marker)[name])
    assert len(str(caught.value)) < 250
    assert str(caught.value).isprintable()
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("os.system, protocol 2", f"names '{os.name}.system', expected a pickle of arrays and plain containers alone"),
        ("eval, protocol 4", "names 'builtins.eval', expected a pickle of arrays and plain containers alone"),
        ("a set, protocol 4", "uses the pickle instruction EMPTY_SET, expected a pickle of arrays and plain containers alone"),
        ("EXT1", "uses the pickle instruction EXT1, expected a pickle of arrays and plain containers alone"),
        ("an array of objects", "has an array of the type 'O8', expected a pickle of arrays and plain containers alone"),
        ("an array huge", "is not a whole pickle (it has an array without a proper shape)"),
        ("no end", "is not a whole pickle (pickle exhausted before seeing STOP)"),
    ],
)
def test_what_is_refused_is_named(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        read_plain_pickle(running_code(NOWHERE)[name])


@pytest.mark.parametrize("name", wasting_memory_or_time())
def test_neither_memory_nor_time_is_wasted(name: str) -> None:
    hostile = wasting_memory_or_time()[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with within(20), suppress(ValueError):
        assert isinstance(read_plain_pickle(hostile), dict)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
