"""The command line in this process."""

from __future__ import annotations

import pytest

from moiety import main


def moiety(*words: object) -> int:
    """The exit code of ``moiety WORDS``."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    return int(ended.value.code or 0)
