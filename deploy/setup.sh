#!/usr/bin/env bash
# Sets up the CPU profile: system libraries, .venv with the pinned packages, the `baton` command.
#
# It may be run again at any time and then takes no time, unless a pin or this script has changed.
# Variables: PYTHON (a Python 3.11 to 3.13; default: the first that is found), VENV (default: .venv), and all that configures pip.
set -euo pipefail
cd "$(dirname "$0")/.."

SUPPORTED="3.11 3.12 3.13" # in the order in which they are looked for
VENV=${VENV:-.venv}
STAMP=$VENV/.baton-setup
UNWANTED="torchvision torchaudio torchcodec" # see requirements/cpu.txt

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

is_supported() { [[ " $SUPPORTED " == *" $("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) "* ]]; }

# The Python to use: a name on PATH may be a stub of a version manager that has no such version.
find_python() {
    local version
    for version in $SUPPORTED; do
        if is_supported "python$version"; then echo "python$version"; return; fi
    done
}

fingerprint() { cat requirements/*.txt pyproject.toml deploy/setup.sh | sha256sum; }

# The list is read whole first: `grep -q` would close the pipe on ldconfig, which then counts as failed.
has_library() { grep -qF "$1" <<<"$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p)"; }

# Debian's names of what is missing: libraries that Mooncake and vLLM link to, and Python's own venv.
missing_packages() {
    has_library libibverbs.so.1 || echo libibverbs1
    has_library libnuma.so.1 || echo libnuma1
    has_library libcurl.so.4 || echo libcurl4
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || "$PYTHON" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
}

install_system_packages() {
    local packages sudo=""
    packages=$(missing_packages | tr '\n' ' ')
    [ -n "$packages" ] || return 0
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    if ! command -v apt-get >/dev/null || { [ -n "$sudo" ] && ! $sudo true 2>/dev/null; }; then
        die "these system packages are missing: $packages- install them with: sudo apt-get install -y $packages"
    fi
    say "installing system packages: $packages"
    # shellcheck disable=SC2086 # a list of words on purpose
    { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $packages; } >/dev/null </dev/null ||
        die "apt-get failed; run: sudo apt-get update && sudo apt-get install -y $packages"
}

pip_install() { "$VENV/bin/python" -m pip install -qq --no-input --disable-pip-version-check --no-deps "$@"; }

# Where pip finds no CPU build, the build for CUDA is taken: it computes on a CPU as well, with libraries of several GB.
install_torch() {
    local torch
    torch=$(grep '^torch==' requirements/cpu.txt)
    say "installing $torch"
    pip_install "$torch" && return
    say "pip could not install $torch (the reason is above). If it found no such version, its configuration offers no" \
        "CPU build of torch; with PIP_EXTRA_INDEX_URL=<address of PyTorch's CPU wheel index> it does." \
        "Installing ${torch%+cpu} instead, the build for CUDA: a download of about 3 GB"
    "$VENV/bin/python" -m pip install -qq --no-input --disable-pip-version-check "${torch%+cpu}" ||
        die "pip could not install ${torch%+cpu} (the reason is above)"
}

install_packages() {
    say "installing the pinned packages; the first time this takes a few minutes"
    # torch is installed already, perhaps not in the build that cpu.txt names
    pip_install -r requirements/proxy.txt -r <(grep -v -e '^torch==' -e '^-r ' requirements/cpu.txt) \
        -r requirements/cpu-transitive.txt -r requirements/dev.txt
    pip_install --no-build-isolation --editable .
    # shellcheck disable=SC2086
    "$VENV/bin/python" -m pip uninstall -qq --yes $UNWANTED 2>/dev/null # an older .venv may have them
}

if [ -x "$VENV/bin/python" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$(fingerprint)" ]; then
    exit 0
fi
PYTHON=${PYTHON:-$(find_python)}
[ -n "$PYTHON" ] || die "Python 3.11, 3.12 or 3.13 is needed: install one (apt-get install python3 python3-venv;" \
    "or pip install uv && uv python install 3.12), or name one with PYTHON=/path/to/python3.12"
is_supported "$PYTHON" || die "the pinned packages are for Python 3.11 to 3.13; $PYTHON is $("$PYTHON" -V 2>&1)"
install_system_packages
# A link to Python alone is what an interrupted run leaves: pip comes last.
"$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "$PYTHON" -m venv "$VENV"
install_torch
install_packages
"$VENV/bin/python" -c 'import transformers, vllm, mooncake.engine' || die "the installed packages do not import"
fingerprint >"$STAMP"
say "done: $VENV/bin/baton is ready"
