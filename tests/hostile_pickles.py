"""Pickles made to do harm: each would run code, fill the memory or compute without end if it could."""

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["EXTENSION", "running_code", "wasting_memory_or_time"]

EXTENSION = 241  # the code under which a test registers os.system


class Calling:
    """Something whose pickle says: call this function with these arguments, and give the result this state."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.answer = (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.answer


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def array(
    shape: bytes = b"K\x04\x85",
    dtype: bytes = b"cnumpy\ndtype\nU\x02u1\x89\x88\x87R",
    state: bytes = b"(K\x03U\x01|NNNK\x00K\x00K\x00tb",
    data: bytes = b"C\x04abcd",
) -> bytes:
    """The pickle of an array of four bytes, with other parts in the place of its own."""
    begin = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    return begin + b"(K\x01" + shape + dtype + state + b"\x89" + data + b"tb."


def held(pickled: bytes) -> bytes:
    """The same as `data` of a dictionary."""
    return b"\x80\x02}U\x04data" + pickled.removeprefix(b"\x80\x02").removesuffix(b".") + b"s."


def running_code(marker: Path) -> dict[str, bytes]:
    """Pickles that name or do what is not allowed. Where code runs, it makes the file `marker`."""
    command, program = f"touch {marker}", f"open({str(marker)!r}, 'w').close()"
    system = Calling(os.system, command)
    objects = {
        "os.system": system,
        "eval": Calling(eval, program),
        "exec": Calling(exec, program),
        "open": Calling(open, str(marker), "w"),
        "import": Calling(__import__, "os"),
        "getattr": Calling(getattr, Calling(__import__, "os"), "system"),
        "getattr, called": Calling(Calling, Calling(getattr, Calling(__import__, "os"), "system"), command),
        "in lists": [[[system]]],
        "in tuples": (1, (2, (3, system))),
        "in a dictionary": {b"labels": {b"more": system}},
        "in an array": np.array([system, 1], object),
        "as an argument": Calling(print, system),
        "as a state": Calling(dict, state={"x": system}),
        "numpy.load": Calling(np.load, str(marker)),
        "numpy.fromfile": Calling(np.fromfile, "/dev/zero"),
        "numpy.zeros": Calling(np.zeros, 2**40),
        "a path": Path("."),
        "a set": {1, 2},
        "a range": range(10**9),
        "a class": np.recarray,
        "a bytearray": bytearray(b"abc"),
        "a number of numpy": np.float64(1),
        "an array of objects": np.array([None, []], object),
        "a structured array": np.zeros(3, [("a", "u1"), ("b", "f8")]),
        "an array of text": np.array(["a", "b"]),
        "an array of dates": np.zeros(3, "M8[s]"),
        "a masked array": np.ma.array([1, 2], mask=[False, True]),
    }
    made = {
        f"{name}, protocol {protocol}{', held' * inside}": pickle.dumps({b"data": value} if inside else value, protocol)
        for name, value in objects.items()
        for protocol in range(6)
        for inside in (False, True)
    }
    call, reconstruct = b"cos\nsystem\n" + text(command), b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n"
    made |= {
        "INST": b"(" + text(command) + b"ios\nsystem\n.",
        "OBJ": b"(" + call + b"o.",
        "NEWOBJ": call + b"\x85\x81.",
        "NEWOBJ_EX": call + b"\x85}\x92.",
        "PERSID": b"Pos.system\n.",
        "BINPERSID": text("os.system") + b"Q.",
        "EXT1": b"\x80\x02\x82" + bytes([EXTENSION]) + text(command) + b"\x85R.",
        "EXT2": b"\x80\x02\x83" + struct.pack("<H", EXTENSION) + text(command) + b"\x85R.",
        "EXT4": b"\x80\x02\x84" + struct.pack("<I", EXTENSION) + text(command) + b"\x85R.",
        "STACK_GLOBAL": b"\x80\x04" + text("os") + text("system") + b"\x93" + text(command) + b"\x85R.",
        "a dotted name": b"\x80\x04" + text("numpy") + text("ndarray.tofile") + b"\x93" + text(str(marker)) + b"\x85R.",
        "no name": b"\x80\x04K\x01K\x02\x93.",
        "a name with a space": b"cnumpy dtype\n\n.",
        "a name of many lines": b"\x80\x04" + text("os\nTraceback") + text("x\r\ny") + b"\x93.",
        "a call of no function": b"\x80\x02K\x01)R.",
        "a call without arguments": b"\x80\x02cnumpy\ndtype\n)R.",
        "ndarray called": b"\x80\x02cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85R.",
        "dtype called": b"\x80\x02cnumpy\ndtype\nU\x01O\x89\x88\x87R.",
        "dtype of a list": b"\x80\x02cnumpy\ndtype\n]\x89\x88\x87R.",
        "another codec": b"\x80\x02c_codecs\nencode\n" + text("abc") + text("zlib_codec") + b"\x86R.",
        "decode": b"\x80\x02c_codecs\ndecode\n" + text("abc") + text("latin1") + b"\x86R.",
        "bytes of a size": b"\x80\x02c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.",
        "reconstruct of another class": reconstruct + b"cnumpy\ndtype\nK\x00\x85U\x01b\x87R.",
        "reconstruct of a size": reconstruct + b"cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85U\x01b\x87R.",
        "the state of a class": b"\x80\x02cnumpy\nndarray\n}" + text("__call__") + text("x") + b"sb.",
        "the state of a list": b"\x80\x02]}" + text("append") + text("x") + b"sb.",
        "the state of a dictionary": b"\x80\x02}}" + text("get") + text("x") + b"sb.",
        "a function instead of a list": b"\x80\x02cnumpy\ndtype\nK\x01a.",
        "a function instead of a dictionary": b"\x80\x02cnumpy\ndtype\nK\x01K\x02s.",
        "a tuple instead of a list": b"\x80\x02)K\x01a.",
        "DUP": b"\x80\x02]2.",
        "POP_MARK": b"\x80\x02(1.",
        "nothing": b"",
        "no end": b"\x80\x02}",
        "an empty stack": b"\x80\x02.",
        "a mark that is not there": b"\x80\x02]e.",
        "a memo that is not there": b"\x80\x02h\x05.",
        "an escaped string": b"S'\\d\\q'\n.",
        "no pickle": b"\x89PNG\r\n\x1a\n" * 10,
        "a list": b"\x80\x02].",
        "an odd number of items": b"\x80\x02}(K\x01u.",
        "a number as a key": b"\x80\x02}K\x01K\x02s.",
    }
    arrays = {
        "huge": array(shape=b"\x8a\x06\x00\x00\x00\x00\x00\x01\x85"),
        "immense": array(shape=b"\x8a\xff" + b"\x7f" * 255 + b"\x85"),
        "negative": array(shape=b"J\xff\xff\xff\xffJ\xfc\xff\xff\xff\x86"),
        "empty and huge": array(shape=b"K\x00\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x86", data=b"C\x00"),
        "too large": array(shape=b"K\x05\x85"),
        "too small": array(shape=b"K\x03\x85"),
        "of no shape": array(shape=b"N"),
        "of a list of sizes": array(shape=b"](K\x04e"),
        "of sizes that are no numbers": array(shape=b"\x88K\x04\x86"),
        "of too many sizes": array(shape=b"(" + b"K\x01" * 100 + b"K\x04t"),
        "of objects": array(dtype=b"cnumpy\ndtype\nU\x02O8\x89\x88\x87R"),
        "of references": array(dtype=b"cnumpy\ndtype\nU\x01O\x89\x88\x87R", data=b"](K\x01K\x02K\x03K\x04e"),
        "of raw memory": array(dtype=b"cnumpy\ndtype\nU\x02V1\x89\x88\x87R"),
        "of a type of parts": array(dtype=b"cnumpy\ndtype\nU\x05u1,u1\x89\x88\x87R"),
        "without a type": array(dtype=b"N", state=b""),
        "whose type has fields": array(state=b"(K\x03U\x01|N)}K\x00K\x00K\x00tb"),
        "whose type is made of others": array(state=b"(K\x03U\x01|NNNtb" + b"cnumpy\ndtype\nU\x02u1\x89\x88\x87R\x86"),
        "whose type has no order": array(state=b"(K\x03U\x01!NNNK\x00K\x00K\x00tb"),
        "whose type has another state": array(state=b"Nb"),
        "of a list": array(data=b"](K\x01K\x02K\x03K\x04e"),
        "of text": array(data=text("abcd")),
        "of nothing": array(data=b"N"),
    }
    return made | {f"an array {name}": held(value) for name, value in arrays.items()}


def wasting_memory_or_time() -> dict[str, bytes]:
    """Pickles that ask for much; some are harmless if one reads them with care."""
    doubled = b"q\x00h\x00\x86"  # a pair of what is on the stack with itself
    return {
        "a memo far away": b"\x80\x02}r\xfe\xff\xff\xffU\x01xK\x01s.",
        "a very long text": b"\x80\x02X\xff\xff\xff\xffabc.",
        "very long bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"abc.",
        "a very long number": b"\x80\x02\x8b\xff\xff\xff\x7fabc.",
        "a number of many digits": b"I" + b"9" * 10**6 + b"\n.",
        "a very long frame": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"}.",
        "very many lists": b"\x80\x02" + b"]" * 1_100_000 + b".",
        "deep lists": b"\x80\x02}U\x01x" + b"]" * 200_000 + b"a" * 199_999 + b"s.",
        "deep tuples": b"\x80\x02}U\x01x)" + b"\x85" * 200_000 + b"s.",
        "deep marks": b"\x80\x02" + b"(" * 200_000 + b"t" * 200_000 + b".",
        "a key that takes for ever to hash": b"\x80\x02}U\x01y" + doubled * 5000 + b"K\x01s.",
        "a tuple that takes for ever to walk through": b"\x80\x02}U\x01xU\x01y" + doubled * 5000 + b"s.",
        "a list in itself": b"\x80\x02}U\x01x]q\x00h\x00as.",
        "a dictionary in itself": b"\x80\x02}q\x00U\x01xh\x00s.",
        "the same text as bytes again and again": (
            b"\x80\x02](c_codecs\nencode\nq\x00" + text("a" * 10**6) + b"q\x01" + text("latin1") + b"\x86q\x02R"
            b"" + b"h\x00h\x02R" * 100_000 + b"e."
        ),
        "the same bytes as arrays again and again": (
            b"\x80\x02}U\x01x](C\x04abcdq\x00" + b"".join([array(data=b"h\x00")[2:-1]] * 2000) + b"es."
        ),
    }
