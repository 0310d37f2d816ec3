#!/bin/sh
# Fill deploy/wheels for builds without a package index; pip's own configuration says where from.
# Usage: deploy/fetch_wheels.sh [PIP OPTIONS]     PYTHON: a Python of the same version and machine as the base image.
# The default torch brings CUDA along, several gigabytes; see the Makefile's PIP_FLAGS for the CPU build.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
rm -f deploy/wheels/*.whl
list=$(mktemp)
trap 'rm -f "$list"' EXIT
"$python" deploy/requirements.py server page agent he sql postgres >"$list"
"$python" -m pip download --quiet --only-binary :all: --dest deploy/wheels "$@" --requirement "$list"
