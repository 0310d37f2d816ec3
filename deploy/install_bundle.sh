#!/bin/sh
# Install Moiety from this unpacked archive, without a network.
# Usage: sh install.sh FOLDER     PYTHON: a Python of the version that deploy/lock.txt names in its first line.
# Every file is compared with SHA256SUMS first, every package with the hash that the lock has.
set -eu
if [ $# -ne 1 ]; then
  echo "usage: sh install.sh FOLDER, such as /opt/moiety" >&2
  exit 2
fi
target=$1
python=${PYTHON:-python3}
cd "$(dirname "$0")"
sha256sum --quiet --strict --check SHA256SUMS
"$python" -m venv "$target"
pip="$target/bin/python -m pip --quiet --isolated --disable-pip-version-check install --no-index --no-deps"
# shellcheck disable=SC2086 # words
$pip --find-links deploy/wheels --require-hashes --requirement deploy/lock.txt
# shellcheck disable=SC2086
$pip deploy/own/moiety-*.whl
"$target/bin/python" -m pip --isolated --disable-pip-version-check check
"$target/bin/moiety" --version
