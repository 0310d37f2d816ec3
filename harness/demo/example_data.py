"""Data folders for a first try: ``python -m harness.demo.example_data FOLDER [FOLDER ...]``, up to five.

Each folder gets one hospital of the bundled breast-cancer data, as the demo splits it, the requester's first.
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.datasets.site_data import write_site_folder


def main(folders: list[str]) -> int:
    """Write the folders; says how many training examples each holds, as ``site join --samples`` wants it."""
    federation = breast_cancer_five_hospitals(seed=0)
    sites = federation.sites
    if not 1 <= len(folders) <= len(sites):
        print(f"name 1 to {len(sites)} folders, found {len(folders)}", file=sys.stderr)
        return 2
    for site, folder in zip(sites, folders, strict=False):
        write_site_folder(site, Path(folder), federation.names)
        print(f"{folder}: {len(site.train)} training and {len(site.test)} test examples ({site.note})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
