#!/bin/sh
# Makes .venv, with the project in it; `venv.sh dev` also installs the developers' tools. Installs Python's venv module first
# if that is missing and we may; otherwise says the one line that does.
set -eu

NEEDS='import sys; sys.exit(sys.version_info < (3, 11))'

find_python() {
    for python in python3 python3.12 python3.13 python3.11 python3.14; do
        if "$python" -c "$NEEDS" 2>/dev/null; then
            echo "$python"
            return
        fi
    done
}

fail() {
    echo ".ci/venv.sh: $*" >&2
    exit 1
}

apt_install() {
    line="apt-get install -y $*"
    command -v apt-get >/dev/null || fail "missing: $*; there is no apt-get to install it"
    if [ "$(id -u)" = 0 ]; then
        root=
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        root='sudo -n'
    else
        fail "missing: $*; only root may install it. This does: sudo $line"
    fi
    echo "installing $*"
    log=$(mktemp)
    # $root is empty or two words.
    if ! { $root apt-get -qq update && $root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-upgrade --no-install-recommends "$@"; } >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        fail "could not install $*"
    fi
    rm -f "$log"
}

python=$(find_python)
if [ -z "$python" ] && ! command -v python3 >/dev/null; then
    apt_install python3 python3-venv
    python=$(find_python)
fi
[ -n "$python" ] || fail "needs Python 3.11 or newer; found $(python3 --version 2>&1 || echo none)"

# Debian packs venv's ensurepip apart from Python.
"$python" -c 'import ensurepip, venv; ensurepip.version()' 2>/dev/null || apt_install "$python-venv"

# libvirt-python is compiled, against the libvirt that is here.
if [ "${1-}" = dev ] && ! .venv/bin/python -c 'import libvirt' 2>/dev/null; then
    needed=
    pkg-config --exists libvirt 2>/dev/null || needed='libvirt-dev pkg-config'
    command -v cc >/dev/null || needed="$needed gcc libc6-dev"
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$headers/Python.h" ] || needed="$needed python3-dev"
    # $needed is several words.
    [ -z "$needed" ] || apt_install $needed
fi

# An interpreter that went away leaves a .venv which cannot run.
if [ -e .venv ] && ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf .venv
fi
if [ ! -e .venv ]; then
    "$python" -m venv .venv
    # An old pip needs twice the time. Where there is no newer one, it does.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --upgrade pip || true
fi

# Each package by its name as pip comes to it: in a terminal on one line, elsewhere as one line at the end.
progress() {
    count=0
    while read -r word name _; do
        case $word in
        Collecting | Installing) [ "$word" = Collecting ] && count=$((count + 1)) || name='all of them' ;;
        *) continue ;;
        esac
        if [ -t 1 ]; then
            printf '\r\033[Kinstalling: %s packages (%s)' "$count" "${name%%[<>=!~;[(]*}"
        fi
    done
    if [ -t 1 ]; then
        printf '\r\033[K'
    fi
    echo "installed $count packages"
}

log=$(mktemp)
{
    # Most installed modules are never imported. Python compiles the others when they are first imported.
    .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off --no-compile -e ".${1:+[$1]}" 2>&1 ||
        touch "$log.failed"
} | tee "$log" | progress
if [ -e "$log.failed" ]; then
    cat "$log" >&2
    rm -f "$log" "$log.failed"
    fail "could not install the project"
fi
rm -f "$log"
