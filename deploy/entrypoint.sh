#!/bin/sh
# numba reads compiled kernels only from a folder that it may write to, and the image is mounted read-only: they are
# copied to a temporary file system. On another kind of processor numba compiles them again, into the same folder.
set -eu
mkdir -p "$NUMBA_CACHE_DIR"
cp -R /usr/local/lib/moiety/kernels/. "$NUMBA_CACHE_DIR"/
exec moiety "$@"
