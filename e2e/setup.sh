#!/usr/bin/env bash
# What the end-to-end tests need besides Python packages: a Chromium. Installed from Debian or Ubuntu if there is none.
set -euo pipefail

for name in "${CHROMIUM:-}" chromium chromium-browser google-chrome; do
    if [ -n "$name" ] && command -v "$name" > /dev/null; then
        echo "end-to-end tests use $(command -v "$name")"
        exit 0
    fi
done

install="apt-get install --yes --no-install-recommends chromium"
if ! command -v apt-get > /dev/null; then
    echo "e2e/setup.sh: error: there is no Chromium and no apt-get; install Chromium, or set CHROMIUM to where it is" >&2
    exit 1
elif [ "$(id -u)" = 0 ]; then
    apt-get update && $install
elif command -v sudo > /dev/null && sudo -n true 2> /dev/null; then
    sudo apt-get update && sudo $install
else
    echo "e2e/setup.sh: error: there is no Chromium, and installing it needs root: sudo $install" >&2
    exit 1
fi
