#!/bin/sh
# Builds wedjat against the DPDK that is installed below a prefix, and runs the tests that need nothing but its virtual devices:
#   scripts/dpdk.sh /opt/dpdk-24.11 [ARGUMENTS OF CARGO TEST]
# Each release is built in a folder of its own below the target folder.
set -eu
cd "$(dirname "$0")/.."

prefix=${1:?"which prefix? usage: scripts/dpdk.sh PREFIX [ARGUMENTS OF CARGO TEST]"}
shift
description=$(find "$prefix/lib" "$prefix/lib64" "$prefix/share" -name libdpdk.pc 2>/dev/null | head -n 1)
if [ -z "$description" ]; then
    echo "scripts/dpdk.sh: no libdpdk.pc below $prefix: name the prefix that DPDK was installed with (meson --prefix)" >&2
    exit 1
fi
PKG_CONFIG_PATH=$(dirname "$description")${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
export PKG_CONFIG_PATH
version=$(pkg-config --modversion libdpdk)
libraries=$(pkg-config --variable=libdir libdpdk)
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/dpdk-$version"

echo "DPDK $version in $libraries"
# The tests start one DPDK process each.
${CARGO:-cargo} test --locked -p wedjat --test dpdk_loopback --test dpdk_peers --test leaf_command "$@"
"$CARGO_TARGET_DIR/debug/wedjat" doctor | grep "libdpdk .*DPDK $version"
