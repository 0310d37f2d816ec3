"""One round as the adapters see it: ``task.json`` and ``before.safetensors`` in, ``after.safetensors`` out.

Both ends of the exchange read and write safetensors files with this, by numpy alone: 8 bytes of length, that much JSON,
and named float32 arrays; there is no code in one.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_PR_SET_PDEATHSIG = 1


class Task:
    """``folder`` is the working folder, kept from round to round; ``settings`` what task.json holds."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.settings = json.loads((self.folder / "task.json").read_text(encoding="utf-8"))
        self.shapes = {layer["name"]: tuple(layer["shape"]) for layer in self.settings["layers"]}

    def before(self):
        """The model as it came: name -> float32 array."""
        return read_tensors(self.folder / "before.safetensors", self.shapes)

    def finish(self, arrays):
        """The model as it was trained; a list is in the order of the study's layers."""
        if not hasattr(arrays, "items"):
            arrays = dict(zip(self.shapes, arrays, strict=True))
        write_tensors(self.folder / "after.safetensors", {name: plain(value) for name, value in arrays.items()})

    def app(self):
        """Return the site's function, ClientApp or client."""
        return app(Path(self.settings["program"]))


def task():
    """The task of this process, which dies with the agent that started it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return Task(sys.argv[1])


def app(path):
    """Load the site's file as a module, and return what in it is called ``app``."""
    sys.path.insert(0, str(path.parent))
    module = types.ModuleType("site_program")
    module.__file__ = str(path)
    sys.modules["site_program"] = module
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)  # noqa: S102 - the site's own file
    if not hasattr(module, "app"):
        raise AttributeError(f"{path.name} has no 'app': add a line such as: app = my_function")
    return module.app


def plain(value):
    """numpy arrays and torch tensors alike."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


_LENGTH_BYTES = 8
_LARGEST_HEADER_BYTES = 16 * 2**20
_ENTRY = {"dtype", "shape", "data_offsets"}


def write_tensors(path: Path, arrays: Mapping[str, Any]) -> None:
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


def read_tensors(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
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
