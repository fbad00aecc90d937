#!/bin/sh
# Links the shared C library out of the static one, as cargo built it: with its soname, and a version at each of its symbols
# (capi/wedjat.map), which cargo's own linking of shared libraries leaves no room for.
#
# Usage: scripts/link-library.sh FOLDER OUT     (FOLDER: where cargo built, target/release; OUT: the library)
set -eu
cd "$(dirname "$0")/.."

if [ $# != 2 ]; then
    echo "scripts/link-library.sh: found '$*'; allowed: FOLDER OUT" >&2
    exit 2
fi
# The number changes when programs must be compiled anew; WEDJAT_ABI in capi/src/code.rs is the same.
"${CC:-cc}" -shared -o "$2" -Wl,-soname,libwedjat.so.0 -Wl,--version-script=capi/wedjat.map -Wl,--no-undefined \
    -Wl,--whole-archive "$1/libwedjat_capi.a" -Wl,--no-whole-archive -Wl,--gc-sections -Wl,-z,relro,-z,now,-z,noexecstack \
    -Wl,--as-needed -lutil -lrt -lpthread -lm -ldl
