"""Other software, measured beside ours."""

from pathlib import Path
from typing import Final

DEFAULT_CACHE: Final = Path("~/.cache/moiety-peers")
"""Where other systems' environments are kept unless somebody says otherwise."""
