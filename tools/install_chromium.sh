#!/usr/bin/env bash
# Installs Chromium where none is found; `make test-ui` drives it through Playwright.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
  command -v "$name" > /dev/null && exit 0
done
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null; then
  echo "make test-ui needs Chromium: install it, and run this again" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium
