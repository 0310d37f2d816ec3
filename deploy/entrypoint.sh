#!/bin/sh
# numba reads compiled kernels only from a folder that it may write to, and the image is mounted read-only: they are
# copied to a temporary file system. On another kind of processor numba compiles them again, into the same folder.
set -eu
mkdir -p "$NUMBA_CACHE_DIR"
cp -R /usr/local/lib/moiety/kernels/. "$NUMBA_CACHE_DIR"/
# The demonstration's keys belong to whoever prepared them, so that this container's user can read them only where all
# can: it takes copies of its own, on the same file system, and the settings name those.
if [ -n "${MOIETY_KEYS_FROM:-}" ]; then
  (umask 077 && cp "$MOIETY_KEYS_FROM"/*key* "${TMPDIR:-/tmp}"/)
fi
exec moiety "$@"
