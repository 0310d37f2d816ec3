"""Write the pages of reference into docs."""

from __future__ import annotations

from pathlib import Path

from harness.reference.study_file import page
from host.output_files import rewrite

if __name__ == "__main__":
    rewrite(Path("docs/study_file.md"), page())
