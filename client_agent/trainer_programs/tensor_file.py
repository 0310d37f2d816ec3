"""Named float32 arrays in a safetensors file, by numpy alone: both ends of the exchange read and write with this.

The file is 8 bytes of length, that much JSON, and the numbers; it holds no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_LENGTH_BYTES = 8
_LARGEST_HEADER_BYTES = 16 * 2**20
_ENTRY = {"dtype", "shape", "data_offsets"}


def write(path: Path, arrays: Mapping[str, Any]) -> None:
    """``arrays``: name -> float32 array, in an order that is kept."""
    header: dict[str, object] = {}
    start = 0
    for name, array in arrays.items():
        if array.dtype != np.float32:
            raise ValueError(f"{name}: found {array.dtype}, parameters are float32")
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [start, start + array.nbytes]}
        start += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).astype("<f4", copy=False).tobytes())


def read(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Read the tensors of ``shapes``, name -> shape, in that order; ValueError names what differs."""
    expected = sum(4 * _size(shape) for shape in shapes.values())
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > _LARGEST_HEADER_BYTES:
            raise ValueError(f"its header has {length} bytes, at most {_LARGEST_HEADER_BYTES} are read")
        header = _header(file.read(length), shapes)
        data = file.read(expected + 1)
    if len(data) != expected or expected != max((entry["data_offsets"][1] for entry in header.values()), default=0):
        raise ValueError(f"its numbers do not fill {expected} bytes, as the study's layers do")
    return {name: _array(data, header[name], shape) for name, shape in shapes.items()}


def _header(text: bytes, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")  # noqa: TRY004 - all that is wrong is a ValueError
    header.pop("__metadata__", None)
    for name in [*shapes, *header]:
        if name not in header:
            raise ValueError(f"layer {name!r} is missing")
        if name not in shapes:
            raise ValueError(f"layer {str(name)[:80]!r} is none of the study's")
    for name, entry in header.items():
        _check(name, entry, shapes[name])
    return header


def _check(name: str, entry: object, shape: tuple[int, ...]) -> None:
    if not isinstance(entry, dict) or set(entry) != _ENTRY:
        raise ValueError(f"layer {name!r}: its entry in the header is not of safetensors")
    if entry["dtype"] != "F32":
        raise ValueError(f"layer {name!r}: found dtype {str(entry['dtype'])[:8]}, parameters are F32")
    if entry["shape"] != list(shape):
        raise ValueError(f"layer {name!r}: found shape {str(entry['shape'])[:80]}, the study has {list(shape)}")
    places = entry["data_offsets"]
    whole = isinstance(places, list) and len(places) == 2 and all(type(one) is int and one >= 0 for one in places)
    if not whole or places[1] - places[0] != 4 * _size(shape):
        raise ValueError(f"layer {name!r}: its numbers do not fill its shape")


def _array(data: bytes, entry: Mapping[str, list[int]], shape: tuple[int, ...]) -> Any:
    begin, end = entry["data_offsets"]
    return np.frombuffer(data[begin:end], dtype="<f4").astype(np.float32).reshape(tuple(shape))


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for one in shape:
        size *= one
    return size
