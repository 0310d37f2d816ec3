"""``python -m tests.frozen.moves OLD [NEW]``: whether code was only moved between two commits.

Every top-level definition of the product is compared by its name and what it does, in whatever module it stands:
imports, modules' docstrings, ``__all__`` and names of modules in texts aside. Prints what is gone, new or changed, and
which files went where; exits 1 if anything but places differs. NEW is HEAD unless it is named.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.frozen.definitions import PACKAGES, Definition, Tree

ROOT = Path(__file__).parents[2]
SINGLE = ("moiety.py",)


@dataclass(frozen=True)
class Moves:
    """Differences, a line each, and old file -> new file -> number of definitions."""

    differences: tuple[str, ...]
    files: dict[tuple[str, str], int]


def compare(old: dict[str, str], new: dict[str, str]) -> Moves:
    """Two trees, each as file -> text."""
    before, after = Tree(old), Tree(new)
    repeated = before.repeated | after.repeated
    olds, news = _by_content(before.definitions(repeated)), _by_content(after.definitions(repeated))
    gone: dict[str, list[str]] = defaultdict(list)
    came: dict[str, list[str]] = defaultdict(list)
    files: Counter[tuple[str, str]] = Counter()
    for key in olds.keys() | news.keys():
        left, right = olds.get(key, []), news.get(key, [])
        stayed = set(left) & set(right) if len(set(left)) == len(left) else set()
        left, right = [f for f in left if f not in stayed], [f for f in right if f not in stayed]
        files.update((file, file) for file in stayed)
        files.update(zip(left, right, strict=False))
        gone[key[0]] += left[len(right) :]
        came[key[0]] += right[len(left) :]
    lines = [line for name in sorted(gone.keys() | came.keys()) for line in _lines(name, gone[name], came[name])]
    return Moves(tuple(lines), dict(files))


def _by_content(definitions: Iterable[Definition]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in definitions:
        found[one.name, one.text].append(one.file)
    return {key: sorted(files) for key, files in found.items()}


def _lines(name: str, gone: list[str], came: list[str]) -> list[str]:
    """Same name, other content: changed, first within a file."""
    changed = [(file, file) for file in gone if file in came]
    gone = [file for file in gone if (file, file) not in changed]
    came = [file for file in came if (file, file) not in changed]
    changed += zip(gone, came, strict=False)
    lines = [f"changed  {name}  {old}" + (f" -> {new}" if new != old else "") for old, new in changed]
    lines += [f"gone     {name}  {file}" for file in gone[len(came) :]]
    return lines + [f"new      {name}  {file}" for file in came[len(gone) :]]


def product_at(commit: str, root: Path = ROOT) -> dict[str, str]:
    """The product's modules at a commit. Raises: subprocess.CalledProcessError for a commit that is not there"""
    packed = subprocess.run(["git", "archive", "--format=tar", commit], cwd=root, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tree:
        wanted = [member for member in tree.getmembers() if member.isfile() and _of_product(member.name)]
        return {member.name: tree.extractfile(member).read().decode() for member in wanted}  # type: ignore[union-attr]


def _of_product(file: str) -> bool:
    return file in SINGLE or (file.endswith(".py") and file.split("/", maxsplit=1)[0] in PACKAGES)


def report(moves: Moves) -> str:
    """The differences, then the files that went elsewhere."""
    lines = list(moves.differences)
    elsewhere = sorted((old, new, count) for (old, new), count in moves.files.items() if old != new)
    if elsewhere:
        width = max(len(old) for old, _, _ in elsewhere)
        lines += ["", "moved:", *(f"  {old:{width}} -> {new}  ({count})" for old, new, count in elsewhere)]
    total = sum(moves.files.values())
    return "\n".join([*lines, "", f"{total} definitions alike, {len(moves.differences)} differences"])


def main(arguments: list[str], root: Path = ROOT) -> int:
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write("usage: python -m tests.frozen.moves OLD [NEW]\n")
        return 2
    old, new = arguments[0], arguments[1] if arguments[1:] else "HEAD"
    moves = compare(product_at(old, root), product_at(new, root))
    sys.stdout.write(report(moves) + "\n")
    return 1 if moves.differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
