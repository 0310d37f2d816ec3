"""One round as the adapters see it: ``task.json`` and ``before.safetensors`` in, ``after.safetensors`` out."""

import ctypes
import json
import signal
import sys
import types
from pathlib import Path

import tensor_file

_PR_SET_PDEATHSIG = 1


class Task:
    """``folder`` is the working folder, kept from round to round; ``settings`` what task.json holds."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.settings = json.loads((self.folder / "task.json").read_text(encoding="utf-8"))
        self.shapes = {layer["name"]: tuple(layer["shape"]) for layer in self.settings["layers"]}

    def before(self):
        """The model as it came: name -> float32 array."""
        return tensor_file.read(self.folder / "before.safetensors", self.shapes)

    def finish(self, arrays):
        """The model as it was trained; a list is in the order of the study's layers."""
        if not hasattr(arrays, "items"):
            arrays = dict(zip(self.shapes, arrays, strict=True))
        tensor_file.write(self.folder / "after.safetensors", {name: plain(value) for name, value in arrays.items()})

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
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)
