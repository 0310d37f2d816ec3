"""Write the pages of reference into docs."""

from __future__ import annotations

from pathlib import Path

from harness.reference.study_file import page

if __name__ == "__main__":
    Path("docs/study_file.md").write_text(page(), encoding="utf-8")
