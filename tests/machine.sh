#!/bin/sh
# What this machine must have: `machine.sh python` for the virtual environment, `machine.sh lab` for lab hosts.
# As root it installs what is missing; otherwise it says what to install. Debian and Ubuntu.
set -eu
case "$1" in
  python) wanted="python3-venv" ;;
  lab) wanted=$(sed 's/#.*//' "$(dirname "$0")/lab/apt-packages.txt") ;;
  *) echo "usage: machine.sh python|lab" >&2; exit 2 ;;
esac
# A Python from elsewhere (pyenv, uv) brings its own venv.
if [ "$1" = python ] && ${PYTHON:-python3} -c 'import ensurepip, venv' 2>/dev/null; then exit 0; fi
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
