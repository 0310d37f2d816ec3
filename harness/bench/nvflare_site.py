"""A site's script under NVFlare's Client API: adds a constant of its own to every parameter.

``nvflare_site.py MARKS`` runs in NVFlare's environment, inside of the client's job process. The first site notes when
each round reaches it.
"""

import sys
import time
from pathlib import Path

import numpy as np
import nvflare.client as flare


def main() -> None:
    flare.init()
    place = int(flare.get_site_name().rpartition("-")[2])
    while flare.is_running():
        model = flare.receive()
        if model is None:
            break
        params = {name: np.asarray(value, dtype=np.float32) for name, value in model.params.items()}
        if place == 1:
            flat = np.concatenate([value.ravel() for value in params.values()])
            with Path(sys.argv[1]).open("a") as out:
                out.write(f"{time.monotonic()} found {flat.min()} {flat.max()}\n")
                out.write(f"{time.monotonic()} round {model.current_round + 1}\n")
        changed = {name: value + np.float32(1e-3 * place) for name, value in params.items()}
        flare.send(flare.FLModel(params=changed, meta={"NUM_STEPS_CURRENT_ROUND": 1}))


if __name__ == "__main__":
    main()
