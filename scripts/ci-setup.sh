#!/usr/bin/env bash
# Installs what the other steps need and a fresh Debian machine with rustup lacks. Needs the network only for what is
# missing. valgrind counts the lab's instructions; redis-server is the peer of the link's tests.
set -euo pipefail

packages=()
command -v cc >/dev/null || packages+=(build-essential)
command -v valgrind >/dev/null || packages+=(valgrind)
command -v redis-server >/dev/null || packages+=(redis-server)

if [ ${#packages[@]} -gt 0 ]; then
  as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -q
  # policy-rc.d's answer 101 keeps Debian from starting a redis of its own; the tests start theirs on a free port.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
    "${as_root[@]}" chmod +x $policy
    trap '"${as_root[@]}" rm -f $policy' EXIT
  fi
  "${as_root[@]}" apt-get install -y -q --no-install-recommends "${packages[@]}"
fi

cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy

rustc --version
cargo --version
