"""Says whether a site's program could be run here: ``look.py KIND PROGRAM``, one JSON line.

The framework and numpy are imported. The function, ClientApp or client is called ``app`` in the program, which is
loaded to look; a script of NVFlare's trains as soon as it is loaded, so it is read and compiled alone.
"""

import importlib
import importlib.metadata
import json
import sys
from pathlib import Path

PACKAGES = {"flower": ("flwr", "numpy"), "nvflare": ("nvflare", "numpy"), "python": ("numpy",)}


def look(kind, program):
    found = []
    for package in PACKAGES[kind]:
        importlib.import_module(package)
        found.append(f"{package} {importlib.metadata.version(package)}")
    if kind == "nvflare":
        compile(program.read_bytes(), str(program), "exec")
    else:
        import round_task  # needs numpy, which was just found

        round_task.app(program)
    return ", ".join([f"Python {sys.version.split()[0]}", *found])


def main():
    kind, program = sys.argv[1:]
    try:
        said = {"found": look(kind, Path(program))}
    except Exception as wrong:
        said = {"wrong": f"{type(wrong).__name__}: {wrong}"}
    print("\n" + json.dumps(said))


if __name__ == "__main__":
    main()
