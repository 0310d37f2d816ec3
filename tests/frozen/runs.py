"""Seeded runs whose results are the same before and after code is moved; slow, and so no part of ``make test``.

    python -m tests.frozen.runs --out DIR [NAME ...]     does the runs, about four minutes for all, a file each into DIR
    python -m tests.frozen.runs --compare BEFORE AFTER   prints what differs; exits 1 if anything does

Every rule in one process, plain, secure and under CKKS; a ranking; the demo and two more federations of processes
(``simulated``, ``federated``). Models are compared by value or hash, metrics without times, ledgers by purpose.
What two runs of the same code differ in is left out by name (``left_behind``); noise under CKKS is held to a bound.
Both runs want one machine and one version of numpy and torch: sums of floats differ between processors.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.frozen.differences import differences
from tests.frozen.left_behind import WITHIN

NOISY = ("rules-ckks", "federation-ckks")


def write(out: Path, names: list[str]) -> None:
    """Do the named runs, or all. Raises: SystemExit for a name that there is not"""
    from tests.frozen.federated import FEDERATED
    from tests.frozen.simulated import SIMULATED

    runs = {**SIMULATED, **FEDERATED}
    unknown = [name for name in names if name not in runs]
    if unknown:
        sys.exit(f"no run is called {', '.join(unknown)}; there are {', '.join(runs)}")
    out.mkdir(parents=True, exist_ok=True)
    for name in names or runs:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = runs[name](Path(folder))
        (out / f"{name}.json").write_text(json.dumps(found, sort_keys=True, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{name}: {time.monotonic() - begin:.0f} s\n")
        sys.stdout.flush()


def compare(before: Path, after: Path) -> list[str]:
    """Every difference, with the run in front."""
    names = sorted({path.name for folder in (before, after) for path in folder.glob("*.json")})
    lines: list[str] = [] if names else [f"no runs in {before} and {after}"]
    for name in names:
        missing = [str(folder) for folder in (before, after) if not (folder / name).exists()]
        if missing:
            lines.append(f"{name} is missing in {missing[0]}")
            continue
        old, new = (json.loads((folder / name).read_text(encoding="utf-8")) for folder in (before, after))
        run = name.removesuffix(".json")
        lines += [f"{run}: {line}" for line in differences(old, new, within=WITHIN if run in NOISY else 0.0)]
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.frozen.runs", description="Seeded runs, and how two differ.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="the folder that the results go to")
    what.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="two such folders")
    parser.add_argument("names", nargs="*", help="only these runs")
    given = parser.parse_args(arguments)
    if given.out is not None:
        write(given.out, given.names)
        return 0
    lines = compare(*given.compare)
    sys.stdout.write("\n".join([*lines, f"{len(lines)} differences"]) + "\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
