#!/bin/sh
# Inside a build: "packages EXTRA ..." installs what the project needs into /opt/moiety, by the lock's versions and
# hashes and nothing else, "project" the project itself. LOCK: another lock than deploy/lock.txt.
# Wheels in ./wheels are used alone when there are any.
set -eu
if ls wheels/*.whl >/dev/null 2>&1; then
  export PIP_NO_INDEX=1 PIP_FIND_LINKS=/build/wheels
fi
case "$1" in
  packages)
    shift
    python3 deploy/requirements.py --locked "${LOCK:-deploy/lock.txt}" "$@" >requirements.txt
    /opt/moiety/bin/python -m pip install --quiet --only-binary :all: --no-deps --require-hashes \
      --requirement requirements.txt
    ;;
  project)
    /opt/moiety/bin/python -m pip install --quiet --no-deps --no-build-isolation .
    /opt/moiety/bin/python -m pip check
    # Neither is needed to run, and an image without them is harder to change from inside.
    /opt/moiety/bin/python -m pip uninstall --quiet --yes setuptools pip
    # Nor are the packages' own tests, torch's headers and its programs (but for the one that it looks for at its start).
    cd "$(/opt/moiety/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    find . -type d -name tests -prune -exec rm -rf {} +
    rm -rf torch/test torch/include pyarrow/include
    if [ -d torch/bin ]; then
      find torch/bin -type f ! -name torch_shm_manager -delete
    fi
    ;;
  *)
    echo "install.sh: found '$1'; allowed: packages, project" >&2
    exit 2
    ;;
esac
