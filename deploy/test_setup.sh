#!/usr/bin/env bash
# Sets up what the tests need and serving does not: a browser without a window, and a font for it; for root, who can make networks,
# what those are made with.
#
# It may be run again at any time; where they are there it takes no time. Variable: CHROMIUM (a browser to be used).
set -euo pipefail

FONTS="/usr/share/fonts /usr/local/share/fonts"

say() { printf 'test setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

has_browser() { command -v "${CHROMIUM:-chromium-headless-shell}" >/dev/null || command -v chromium >/dev/null; }

# shellcheck disable=SC2086 # a list of folders on purpose
has_font() { [ -n "$(find -L $FONTS -name '*.[to]tf' -print -quit 2>/dev/null)" ]; }

missing_packages() {
    has_browser || echo chromium-headless-shell
    has_font || echo fonts-dejavu-core
    [ "$(id -u)" = 0 ] || return 0
    command -v ip >/dev/null || echo iproute2
}

packages=$(missing_packages | tr '\n' ' ')
[ -n "$packages" ] || exit 0
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo -n"
if ! command -v apt-get >/dev/null || { [ -n "$sudo" ] && ! $sudo true 2>/dev/null; }; then
    die "the tests of HTML pages need these packages: $packages- install them with:" \
        "sudo apt-get install -y --no-install-recommends $packages(or name a Chromium with CHROMIUM=/path)"
fi
say "installing $packages"
# shellcheck disable=SC2086 # a list of words on purpose
{ $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends $packages; } >/dev/null </dev/null ||
    die "apt-get failed; run: sudo apt-get update && sudo apt-get install -y --no-install-recommends $packages"
