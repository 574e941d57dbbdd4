"""Compressed streams, read with a bound: a few bytes can be made to unpack to more than any memory holds."""

import io
import zlib
from typing import Any, BinaryIO

__all__ = ["inflated"]

CHUNK = 2**16


def inflated(file: BinaryIO, limit: int) -> io.BufferedReader:
    """What the zlib or gzip stream that begins here in `file` holds.

    Reading raises ValueError where the stream ends too early or has more than `limit` bytes, and zlib.error where it is
    damaged, which the checksum at its end tells for certain.
    """
    return io.BufferedReader(_Inflated(file, limit))


class _Inflated(io.RawIOBase):
    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file, self._limit, self._left = file, limit, limit
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS + 32)  # finds out by itself whether it is zlib or gzip

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = b""
        while not piece and not self._inflate.eof:
            data = self._inflate.unconsumed_tail or self._file.read(CHUNK)
            piece = self._inflate.decompress(data, len(buffer))
            if not data and not piece:
                raise ValueError("it ends too early")
        self._left -= len(piece)
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {self._limit} bytes")
        buffer[: len(piece)] = piece
        return len(piece)
