#!/bin/sh
# A base image made of the distribution's own packages, where no image registry can be reached.
# Usage: deploy/make_base.sh [NAME]      needs root, debootstrap and a running engine; DEBIAN_MIRROR names a mirror.
set -eu
name=${1:-moiety-base:local}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
# shellcheck disable=SC2086 # an empty mirror must vanish
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" ${DEBIAN_MIRROR:-} >&2
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" -c . | docker import - "$name"
