"""Writes the test vectors, from the slow reference alone.

    python -m tests.vectors.generate

Long vectors are given by the seed that expands to them and checked by SHA-256, short ones are spelled out.
Every bad case is verified here to be bad before it is written.
"""

from __future__ import annotations

import json

from tests.vectors import build_arithmetic, build_measurement, build_quantity, build_release, build_tags, build_transfer
from tests.vectors.material import FOLDER

BUILDERS = {
    "prg": build_arithmetic.prg,
    "fixed_point": build_arithmetic.fixed_point,
    "sharing": build_arithmetic.sharing,
    "sketch": build_arithmetic.sketches,
    "range_check": build_measurement.range_checks,
    "product": build_measurement.products,
    "distance": build_measurement.distances,
    "quantity": build_quantity.quantities,
    "release": build_release.releases,
    "tags": build_tags.tagged_rounds,
    "transfer": build_transfer.transfers,
    "weights": build_release.weights,
}


def main() -> None:
    for name, build in BUILDERS.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(build(), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
