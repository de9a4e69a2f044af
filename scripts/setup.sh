#!/usr/bin/env bash
# Makes the environment: Debian packages (when root), a virtual environment, the pinned Python packages.
#   scripts/setup.sh run|dev cpu|cuda [python3]
# `run` is what serving needs, `dev` adds what the tests need. Each step says what it does; a second call is quick.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-run} device=${2:-cpu} python=${3:-python3}
run_packages=(libportaudio2)
dev_packages=(chromium nodejs flite espeak-ng asterisk-core-sounds-en-g722 cmake g++
    libboost-program-options-dev libboost-system-dev libboost-thread-dev libboost-test-dev)

say() { printf '\033[1msilica\033[0m %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

have_package() { # a Debian package, or a program of the same purpose that is there already
    case $1 in
        nodejs) command -v node >/dev/null && return 0 ;;
        cmake | g++ | chromium | flite | espeak-ng) command -v "$1" >/dev/null && return 0 ;;
    esac
    dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}

debian_packages() {
    local missing=() package
    command -v dpkg-query >/dev/null || { say "not a Debian system: if something is missing, its message says what"; return 0; }
    for package in "$@"; do have_package "$package" || missing+=("$package"); done
    [ ${#missing[@]} -eq 0 ] && return 0
    if [ "$(id -u)" -ne 0 ]; then
        say "these Debian packages are missing: ${missing[*]}"
        say "install them with:  sudo apt-get install --no-install-recommends ${missing[*]}"
        [ "$what" = run ] && { say "going on without them: only the microphone client needs them"; return 0; }
        fail "then run the same command again"
    fi
    say "installing Debian packages: ${missing[*]}"
    apt-get update -qq >/dev/null || say "apt-get update failed; trying with the lists that are here"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

environment() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
        || fail "Python 3.11 or newer is needed; $python is $("$python" --version 2>&1). Try: make PYTHON=python3.12 ..."
    [ -x .venv/bin/python ] && return 0
    say "making the environment in .venv"
    "$python" -m venv .venv || fail "could not make .venv; on Debian: apt-get install python3-venv"
}

pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

torch_build() { # the CPU build on Linux is named outright, so that gigabytes of CUDA never arrive by accident
    local version=2.13.0
    if .venv/bin/python - "$device" "$version" <<'PY' 2>/dev/null; then return 0; fi
import sys, torch
cuda = torch.version.cuda is not None
sys.exit(not (torch.__version__.split("+")[0] == sys.argv[2] and cuda == (sys.argv[1] == "cuda")))
PY
    say "installing PyTorch $version for $device (the largest piece: a minute or two)"
    if [ "$device" = cuda ] || [ "$(uname -s)" != Linux ]; then
        pip install -q "torch==$version"
    else
        pip install -q --retries 1 --timeout 10 "torch==$version+cpu" 2>/dev/null \
            || pip install -q "torch==$version+cpu" --extra-index-url https://download.pytorch.org/whl/cpu
    fi
}

case $what in run | dev) ;; *) fail "what to set up? run or dev, not '$what'" ;; esac
case $device in cpu | cuda) ;; *) fail "DEVICE is cpu or cuda, not '$device'" ;; esac

debian_packages "${run_packages[@]}"
[ "$what" = dev ] && debian_packages "${dev_packages[@]}"
environment
torch_build
say "installing the pinned Python packages ($what)"
if [ "$what" = dev ]; then
    pip install -q -r requirements/run.txt -r requirements/dev.txt
else
    pip install -q -r requirements/run.txt
fi
pip install -q --no-deps --no-build-isolation -e .
say "ready"
