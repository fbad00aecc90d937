#!/bin/sh
# Checks for what building and testing need, installs what is missing where the distribution has it (Debian, Ubuntu),
# and otherwise says what to install. Quiet when all is there.
#
# Usage: scripts/deps.sh [build] [test] [bench] [nics]     (build when nothing is named)
set -u
cd "$(dirname "$0")/.." || exit 1

dpdk_least=21.11
rust_least=$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' Cargo.toml)
# Packages to install, and the same needs in words for systems where this script installs nothing.
packages=
needs=
# Packages of programs without which some tests are skipped.
wants=

want() { wants="$wants $1"; }

need() { # need PACKAGE... : WORDS
    while [ "$1" != : ]; do
        packages="$packages $1"
        shift
    done
    shift
    needs="$needs
  - $*"
}

at_least() { # at_least FOUND LEAST
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

has() { command -v "$1" >/dev/null 2>&1; }

has_libclang() {
    for file in "${LIBCLANG_PATH:-/nonexistent}"/libclang*.so* /usr/lib/llvm-*/lib/libclang[-.]*so* \
        /usr/lib/*-linux-gnu*/libclang[-.]*so* /usr/lib64/libclang.so* /usr/lib/libclang.so* \
        /usr/local/lib/libclang.so*; do
        case $file in *libclang-cpp*) ;; *) [ -e "$file" ] && return 0 ;; esac
    done
    return 1
}

look_for_build() {
    has cc || need gcc libc6-dev : "a C compiler called cc (Debian: gcc libc6-dev; Fedora: gcc)"
    has_libclang || need libclang-dev clang : "libclang, for bindgen (Debian: libclang-dev clang; Fedora: clang-devel)"
    if ! has pkg-config; then
        need pkg-config : "pkg-config (Debian: pkg-config; Fedora: pkgconf-pkg-config)"
        # Whether there is a libdpdk can't be seen without it.
        need libdpdk-dev : "libdpdk $dpdk_least or later with headers (Debian: libdpdk-dev; Fedora: dpdk-devel)"
    elif ! pkg-config --atleast-version="$dpdk_least" libdpdk; then
        found=$(pkg-config --modversion libdpdk 2>/dev/null || echo none)
        need libdpdk-dev : "libdpdk $dpdk_least or later with headers, found $found" \
            "(Debian: libdpdk-dev; Fedora: dpdk-devel; your own: PKG_CONFIG_PATH)"
    fi
}

look_for_test() {
    look_for_build
    # A program is linked with the library's archive and nothing shared.
    case $(cc -print-file-name=libc.a 2>/dev/null) in
    */*) ;;
    *) need libc6-dev : "the C library's archive (Debian: libc6-dev; Fedora: glibc-static)" ;;
    esac
    if ! has pkg-config || ! pkg-config --exists rocksdb; then
        need librocksdb-dev : "librocksdb with headers (Debian: librocksdb-dev; Fedora: rocksdb-devel)"
    fi
    has tshark || want tshark
    has etcd || want etcd-server
    has dpdk-telemetry.py || want dpdk-dev
    has cmake || want cmake
    has go || want golang-go
    if has dpkg; then
        has dh_builddeb || want debhelper
        has lintian || want lintian
    fi
    has chromium || want chromium
    ! has dpkg || has dpkg-shlibdeps || want dpkg-dev
    # The tests over the kernel's interfaces run as root only.
    [ "$(id -u)" = 0 ] || return 0
    has ip || need iproute2 : "ip (Debian: iproute2; Fedora: iproute)"
    has ethtool || need ethtool : "ethtool (Debian, Fedora: ethtool)"
    has python3 || need python3 : "python3 (Debian, Fedora: python3)"
    has promtool || need prometheus : "prometheus and promtool (Debian: prometheus)"
    look_for_nics
    has strace || need strace : "strace (Debian, Fedora: strace)"
    # Commands of the documents' pages.
    has curl || need curl : "curl (Debian, Fedora: curl)"
    has openssl || need openssl : "openssl (Debian, Fedora: openssl)"
}

look_for_bench() {
    look_for_build
    has nginx || want nginx
    [ -e /usr/lib/nginx/modules/ngx_stream_module.so ] || want libnginx-mod-stream
    has dpdk-testpmd || need dpdk-dev : "dpdk-testpmd (Debian: dpdk-dev; Fedora: dpdk-tools)"
    has python3 || need python3 : "python3 (Debian, Fedora: python3)"
}

# The kernel package of the lab's guest, downloaded and not installed.
kernel=${CARGO_TARGET_DIR:-target}/nics/linux.deb

look_for_nics() {
    has qemu-system-x86_64 || want qemu-system-x86
    has ip || need iproute2 : "ip (Debian: iproute2; Fedora: iproute)"
    has python3 || need python3 : "python3 (Debian, Fedora: python3)"
}

download_kernel() {
    if [ -e "$kernel" ] || ! has apt-get || [ "$(dpkg --print-architecture)" != amd64 ]; then return; fi
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | head -n 1)
    if [ -z "$package" ]; then
        echo "no kernel package for the lab's guest: apt-cache finds no linux-image-amd64" >&2
        return
    fi
    folder=$(mktemp -d)
    echo "downloading $package"
    if (cd "$folder" && apt-get download -qq -o APT::Sandbox::User=root "$package" >/dev/null); then
        mkdir -p "$(dirname "$kernel")"
        mv "$folder"/*.deb "$kernel"
    else
        echo "cannot download $package; the lab of NICs is skipped without it" >&2
    fi
    rm -rf "$folder"
}

look() {
    packages="" needs="" wants=""
    for purpose in $purposes; do "look_for_$purpose"; done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_install() {
    has apt-get && { [ "$(id -u)" = 0 ] || { has sudo && sudo -n true 2>/dev/null; }; }
}

install_packages() {
    echo "installing with apt-get:$packages$wants"
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    as_root apt-get install -y -qq --no-install-recommends $packages $wants >/dev/null
}

# Debian's Rust is mostly too old, and a toolchain is its owner's choice, so none is installed here.
check_rust() {
    if ! has cargo || ! has rustc; then
        echo "Rust is missing: install $rust_least or later from https://rustup.rs and run make again" >&2
        exit 1
    fi
    found=$(rustc --version | cut -d ' ' -f 2 | cut -d - -f 1)
    if ! at_least "$found" "$rust_least"; then
        echo "Rust $found is too old, $rust_least or later is needed: run 'rustup update stable'" \
            "(rustup itself: https://rustup.rs)" >&2
        exit 1
    fi
    case $purposes in *test*) ;; *) return ;; esac
    if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
        if has rustup && rustup component add rustfmt clippy; then return; fi
        echo "rustfmt and clippy are missing: run 'rustup component add rustfmt clippy'" >&2
        exit 1
    fi
}

purposes=${*:-build}
for purpose in $purposes; do
    case $purpose in
    build | test | bench | nics) ;;
    *)
        echo "scripts/deps.sh: found '$purpose'; allowed: build, test, bench, nics" >&2
        exit 2
        ;;
    esac
done

look
if [ -n "$needs$wants" ] && can_install; then
    install_packages || echo "apt-get failed" >&2
    look
fi
case $purposes in *nics* | *test*) [ "$(id -u)" != 0 ] || download_kernel ;; esac
if [ -n "$needs" ]; then
    echo "missing:$needs" >&2
    if has apt-get; then echo "install with: sudo apt-get install$packages" >&2; fi
    echo "without DPDK, everything but the DPDK ports builds with: cargo build --no-default-features --features wedjat/cli" >&2
    exit 1
fi
check_rust
