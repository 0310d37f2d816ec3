"""Word to people that a study waits for them, sent beside everything else: nothing here keeps a study from going on.

    notices.json   for each study and way: delivered when, or since when and why not

Each notice has a thread of its own for each way, until it is delivered. What cannot be delivered is tried again, with
pauses that grow, for three days, and again at the next start of the agent; what was delivered is not sent twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import stamina
import structlog
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from client_agent.site.telling.ways import NotDelivered, Notice, Way
from host.files import write_durably
from protocol.errors import StorageFull

NOTICES: Final = "notices.json"
_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 3600.0
_TRIED_FOR_S: Final = 3 * 86400.0
_log = structlog.get_logger("agent")


class Sent(BaseModel):
    """One study by one way; times are since 1970. ``delivered_at_s`` is None until it went well."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    study: str
    study_digest: str
    way: str
    delivered_at_s: float | None = None
    failing_since_s: float | None = None
    failure: str = ""


_FILE: Final = TypeAdapter(tuple[Sent, ...])


class Notices:
    """Ways to people, and what went by each of them; with no ways it does nothing."""

    def __init__(self, state_dir: Path, ways: Mapping[str, Way], clock: Callable[[], float]) -> None:
        self._path = state_dir / NOTICES
        self._ways = dict(ways)
        self._clock = clock
        self._lock = threading.Lock()
        self._known = {(one.study_digest, one.way): one for one in read_notices(state_dir)}
        self._under_way: set[tuple[str, str]] = set()

    def tell(self, notice: Notice) -> None:
        """Returns at once."""
        for way in self._ways:
            key = (notice.study_digest, way)
            with self._lock:
                known = self._known.get(key)
                if key in self._under_way or (known is not None and known.delivered_at_s is not None):
                    continue
                self._under_way.add(key)
            threading.Thread(target=self._work, args=(way, notice), name=f"notice by {way}", daemon=True).start()

    def _work(self, way: str, notice: Notice) -> None:
        try:
            self._deliver(way, notice)
        except Exception:  # nobody else would hear of it
            _log.exception("notice_failed", way=way, study=notice.study)
            self._keep(notice, way, "an error nobody expected: see the agent's log")
        finally:
            with self._lock:
                self._under_way.discard((notice.study_digest, way))

    def _deliver(self, way: str, notice: Notice) -> None:
        try:
            for attempt in stamina.retry_context(
                on=NotDelivered,
                attempts=None,
                timeout=_TRIED_FOR_S,
                wait_initial=_FIRST_PAUSE_S,
                wait_max=_LONGEST_PAUSE_S,
            ):
                with attempt:
                    self._try(way, notice)
        except NotDelivered as last:
            _log.error("notice_given_up", way=way, study=notice.study, detail=str(last))

    def _try(self, way: str, notice: Notice) -> None:
        try:
            self._ways[way](notice)
        except NotDelivered as refused:
            if self._keep(notice, way, str(refused)):
                _log.warning("notice_not_delivered", way=way, study=notice.study, detail=str(refused))
            raise
        self._keep(notice, way, "")
        _log.info("notice_delivered", way=way, study=notice.study)

    def _keep(self, notice: Notice, way: str, failure: str) -> bool:
        """Return whether this is news."""
        key, now = (notice.study_digest, way), self._clock()
        with self._lock:
            known = self._known.get(key)
            if known is not None and failure and known.failure == failure:
                return False
            since = None if not failure else now if known is None else known.failing_since_s or now
            self._known[key] = Sent(
                study=notice.study,
                study_digest=notice.study_digest,
                way=way,
                delivered_at_s=None if failure else now,
                failing_since_s=since,
                failure=failure,
            )
            with suppress(OSError, StorageFull):  # word went out or did not, whether or not there is room to say so
                write_durably(self._path, _FILE.dump_json(tuple(self._known.values())))
        return True


def read_notices(state_dir: Path) -> tuple[Sent, ...]:
    """Read the notices; empty where the file is missing or cannot be read, since nothing rests on it."""
    try:
        return _FILE.validate_json((state_dir / NOTICES).read_bytes())
    except (OSError, ValidationError):
        return ()
