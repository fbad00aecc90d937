#!/bin/sh
# Links the installed static library out of the one that cargo built: a single object with the public functions of
# capi/wedjat.map and all that they call, without debug information. Every other name is local, so the library can stand in one
# program with other libraries written in Rust.
#
# Usage: scripts/link-archive.sh FOLDER OUT     (FOLDER: where cargo built, target/release; OUT: the library)
set -eu
cd "$(dirname "$0")/.."

if [ $# != 2 ]; then
    echo "scripts/link-archive.sh: found '$*'; allowed: FOLDER OUT" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n 's/^ *\(wedjat_[a-z0-9_]*\);$/\1/p' capi/wedjat.map >"$work/public"
# shellcheck disable=SC2046 # a list of words
"${CC:-cc}" -r -nostdlib -Wl,--gc-sections,--force-group-allocation,--strip-debug $(sed "s/^/-Wl,-u,/" "$work/public") \
    -o "$work/all.o" "$1/libwedjat_capi.a"
"${OBJCOPY:-objcopy}" --strip-unneeded --remove-section=.llvmbc --remove-section=.llvmcmd \
    --keep-global-symbols="$work/public" "$work/all.o" "$work/wedjat.o"
rm -f "$2"
"${AR:-ar}" rcsD "$2" "$work/wedjat.o"
