#!/bin/sh
# Fill deploy/wheels for builds without a package index, with the files that the lock names and no others; pip's own
# configuration says where from. Usage: deploy/fetch_wheels.sh [PIP OPTIONS]
# PYTHON: a Python of the lock's version. LOCK: another lock, as deploy/lock-cuda.txt, which brings several gigabytes.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
rm -f deploy/wheels/*.whl
"$python" -m pip download --quiet --only-binary :all: --no-deps --require-hashes --dest deploy/wheels "$@" \
  --requirement "${LOCK:-deploy/lock.txt}"
