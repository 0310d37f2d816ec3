"""Lines of a compose service: what its container is denied, and how its log is bounded."""

from __future__ import annotations

from typing import Final

HARDENED: Final = """\
    read_only: true
    tmpfs:
      - /tmp:size=64m,mode=1777
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
"""
LOGGED: Final = """\
    logging:
      driver: json-file
      options: {max-size: 20m, max-file: "10"}
"""
