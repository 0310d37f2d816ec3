"""Room on this machine: disk and memory, as far as Linux says."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from host.doctor.finding import Finding, failed, ok, warning

_GIB: Final = 2**30
_MEMORY: Final = Path("/proc/meminfo")


def look_at_disk(check: str, folder: Path, least_bytes: int, wanted_bytes: int) -> Finding:
    """Free space where ``folder`` is or will be, and whether this process may write there."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return failed(check, f"{there} cannot be written by this user", f"give {folder} to the user that runs this")
    free = shutil.disk_usage(there).free
    found = f"{free / _GIB:.1f} GiB free at {folder}"
    if free < least_bytes:
        return failed(check, found, f"at least {least_bytes / _GIB:.2f} GiB are needed: free some, or use another disk")
    if free < wanted_bytes:
        return warning(check, found, f"{wanted_bytes / _GIB:.0f} GiB are comfortable for models and their records")
    return ok(check, found)


def look_at_memory(wanted_bytes: int, meminfo: Path = _MEMORY) -> Finding:
    """What Linux says is available without swapping."""
    try:
        table = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
        available = int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return warning("memory", "this system does not say how much is available", "look by hand")
    found = f"{available / _GIB:.1f} GiB available"
    if available < wanted_bytes:
        return warning("memory", found, f"{wanted_bytes / _GIB:.0f} GiB are comfortable")
    return ok("memory", found)
