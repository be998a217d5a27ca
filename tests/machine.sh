#!/bin/sh
# What this machine must have: `machine.sh python` for the virtual environment, `machine.sh lab` for lab hosts,
# `machine.sh browser` for the tests of a page.
# As root it installs what is missing; otherwise it says what to install. Debian and Ubuntu.
set -eu
case "$1" in
  python) wanted="python3-venv" ;;
  lab) wanted=$(sed 's/#.*//' "$(dirname "$0")/lab/apt-packages.txt") ;;
  browser) wanted="chromium fonts-dejavu-core" ;;
  *) echo "usage: machine.sh python|lab|browser" >&2; exit 2 ;;
esac
# A Python from elsewhere (pyenv, uv) brings its own venv.
if [ "$1" = python ] && ${PYTHON:-python3} -c 'import ensurepip, venv' 2>/dev/null; then exit 0; fi
# Ubuntu has no such package, only a snap: there a browser is brought by whoever wants these tests.
if [ "$1" = browser ]; then
  for program in chromium chromium-browser google-chrome; do
    if command -v "$program" >/dev/null; then exit 0; fi
  done
  if ! grep -qx 'ID=debian' /etc/os-release; then
    echo "no chromium or google-chrome here: the tests of the bench's page are skipped" >&2
    exit 0
  fi
fi
missing=""
for package in $wanted; do
  [ "$(dpkg-query --show --showformat '${db:Status-Abbrev}' "$package" 2>/dev/null)" = "ii " ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
  echo "these packages are missing: run 'sudo apt-get install$missing', or this command as root" >&2
  exit 1
fi
echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp); trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086
{ apt-get -q update && apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $missing; } >"$log" 2>&1 \
  || { tail -n 20 "$log" >&2; exit 1; }
