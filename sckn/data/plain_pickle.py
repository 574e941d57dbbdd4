"""A restricted unpickler: arrays of numbers and plain containers, nothing else.

Python's own unpickler imports and calls what a file names, and can be led to fill the memory or to compute for ever. Here
`pickletools` takes the file apart into its instructions, and this module carries out the few that lists, dictionaries and
arrays need (protocols 2 to 4). Names in the file are only compared with those below: nothing is imported or called by its
name. An array is a view of bytes that the file holds, so no shape in it can ask for more memory than that.
"""

import math
import pickletools
import warnings
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

__all__ = ["read_plain_pickle"]

MOST_INSTRUCTIONS = 1_000_000  # the official files have some 200,000 at most

Name = Enum("Name", ["RECONSTRUCT", "NDARRAY", "DTYPE", "ENCODE", "BYTES"])

NAMES = {
    "numpy.core.multiarray _reconstruct": Name.RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": Name.RECONSTRUCT,  # numpy 2
    "numpy ndarray": Name.NDARRAY,
    "numpy dtype": Name.DTYPE,
    "_codecs encode": Name.ENCODE,  # bytes, as Python 3 writes them in protocol 2
    "__builtin__ bytes": Name.BYTES,  # likewise, where there are none
}
NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")

# Instructions that put their argument, or a constant, on the stack.
ARGUMENTS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
PYTHON_2_STRINGS = {"BINSTRING", "SHORT_BINSTRING"}  # bytes, which pickletools gives as text
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_plain_pickle(data: bytes) -> dict[str, Any]:
    """The dictionary that a pickle holds; its keys, text or bytes, become text. Strings of Python 2 are bytes.

    What is wrong is raised as ValueError, in words that follow on the name of the file.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pickletools passes on what Python thinks of damaged text
            result = _Machine(len(data)).run(data)
    except _RefusedError as error:
        raise ValueError(f"{error}, expected a pickle of arrays and plain containers alone") from None
    except (ValueError, LookupError, OverflowError) as error:
        raise ValueError(f"is not a whole pickle ({str(error)[:100]})") from None
    if not isinstance(result, dict):
        raise ValueError("holds no dictionary, expected a pickled one")
    return {
        key.decode("latin-1") if isinstance(key, bytes) else key: value.values if isinstance(value, _Array) else value
        for key, value in result.items()
    }


class _RefusedError(Exception):
    """The pickle asks for something that is not allowed."""


@dataclass(eq=False)
class _Type:
    """A dtype; a pickle tells kind and size first and the byte order later."""

    code: str
    order: str = "="


@dataclass(eq=False)
class _Array:
    """An array, which a pickle mentions first and fills later."""

    values: np.ndarray | None = None


class _Machine:
    """The stack machine that pickles are written for."""

    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.under_marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.encodable = size  # text becomes bytes once; by the memo it could do so again and again

    def run(self, data: bytes) -> Any:
        for count, (instruction, argument, _) in enumerate(pickletools.genops(data)):
            if count == MOST_INSTRUCTIONS:
                raise _RefusedError(f"has more than {MOST_INSTRUCTIONS} pickle instructions")
            if instruction.name == "STOP":
                break
            self.carry_out(instruction.name, argument)
        return self.stack.pop()

    def carry_out(self, instruction: str, argument: Any) -> None:
        stack = self.stack
        match instruction:
            case _ if instruction in ARGUMENTS:
                stack.append(argument)
            case _ if instruction in PYTHON_2_STRINGS:
                stack.append(argument.encode("latin-1"))
            case _ if instruction in CONSTANTS:
                stack.append(CONSTANTS[instruction])
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                if argument not in self.memo:
                    raise ValueError("it comes back to something that was not there")
                stack.append(self.memo[argument])
            case "MARK":
                self.under_marks.append(stack)
                self.stack = []
            case "TUPLE":
                items = self.since_mark()
                self.stack.append(tuple(items))
            case _ if instruction in TUPLES:
                items = [stack.pop() for _ in range(TUPLES[instruction])]
                stack.append(tuple(reversed(items)))
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "APPEND":
                self.extend([stack.pop()])
            case "APPENDS":
                self.extend(self.since_mark())
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self.set_items([key, value])
            case "SETITEMS":
                self.set_items(self.since_mark())
            case "GLOBAL":
                stack.append(_named(argument))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_named(f"{module} {name}" if isinstance(module, str) and isinstance(name, str) else ""))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(self.called(function, arguments))
            case "BUILD":
                state = stack.pop()
                _fill(stack[-1], state)
            case "PROTO" | "FRAME":
                pass
            case _:
                raise _RefusedError(f"uses the pickle instruction {instruction}")

    def since_mark(self) -> list[Any]:
        """What was put on the stack since the last mark; the stack under the mark is the stack again."""
        items, self.stack = self.stack, self.under_marks.pop()
        return items

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("it appends to what is no list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict) or len(items) % 2:
            raise ValueError("it sets items of what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes):  # the hash of nested tuples can take for ever
                raise _RefusedError("has a dictionary key that is neither text nor bytes")
            self.stack[-1][key] = value

    def called(self, function: Any, arguments: Any) -> Any:
        """What the few functions that may be named would return."""
        match function, arguments:
            case Name.RECONSTRUCT, (Name.NDARRAY, (0,), b"b" | "b"):
                return _Array()
            case Name.DTYPE, (str() | bytes() as code, 0 | 1, 0 | 1):
                return _Type(_number_type(code))
            case Name.ENCODE, (str() as text, "latin1" | "latin-1"):
                self.encodable -= len(text)
                if self.encodable < 0:
                    raise _RefusedError("makes bytes of the same text again and again")
                return text.encode("latin-1")
            case Name.BYTES, ():
                return b""
            case Name(), _:
                raise _RefusedError(f"calls {function.name.lower()} in a way that arrays do not need")
        raise _RefusedError("calls something that has no name")


def _named(name: str) -> Name:
    if name not in NAMES:
        raise _RefusedError(f"names {name[:80].replace(' ', '.') or 'something that is no text'!r}")
    return NAMES[name]


def _number_type(code: str | bytes) -> str:
    text = code.decode("latin-1") if isinstance(code, bytes) else code
    if text not in NUMBERS:
        raise _RefusedError(f"has an array of the type {text[:20]!r}")
    return text


def _fill(target: Any, state: Any) -> None:
    """The second half of a dtype or of an array."""
    match target, state:
        case _Type(), (int(), "|" | b"|" | "<" | b"<" | ">" | b">" | "=" | b"=" as order, None, None, None, *_):
            target.order = order if isinstance(order, str) else order.decode()
        case _Array(), (int(), tuple() as shape, _Type() as kind, 0 | 1 as by_columns, bytes() as data):
            target.values = _array(shape, np.dtype(kind.order + kind.code), bool(by_columns), data)
        case _:
            raise _RefusedError("sets the state of something else than an array of numbers")


def _array(shape: tuple[Any, ...], dtype: np.dtype, by_columns: bool, data: bytes) -> np.ndarray:
    if len(shape) > 8 or not all(type(side) is int and 0 < side <= len(data) for side in shape):
        raise ValueError("it has an array without a proper shape")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"it has an array of {len(data)} bytes, expected {math.prod(shape) * dtype.itemsize}")
    return np.ndarray(shape, dtype, data, order="F" if by_columns else "C")
