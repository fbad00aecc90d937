#!/bin/sh
# Builds the documents as a book with mdBook, into OUT.
#
# mdBook takes only files below its source folder, and the pages link to README.md, examples and sources. So the source folder is a copy
# of the documents at their places in the project, with the index at its top.
#
# Usage: scripts/book.sh OUT
set -eu
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:?usage: scripts/book.sh OUT}")

if ! command -v mdbook >/dev/null 2>&1; then
    echo "mdbook is not installed; install it with: cargo install mdbook" >&2
    exit 1
fi
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/src"
cp -r ./*.md LICENSE docs examples "$copy/src/"
{
    sed -n 's|^\[Introduction\](\.\./|[Introduction](|p' docs/SUMMARY.md
    echo '[All pages](docs/SUMMARY.md)'
    sed -e '1d; /^\[Introduction\]/d' -e 's|](\.\./|](|' -e t -e 's|](|](docs/|' docs/SUMMARY.md
} >"$copy/src/SUMMARY.md"
# Without the default preprocessors README.md stays README.html, which the pages link to.
cat >"$copy/book.toml" <<END
[book]
title = "wedjat"
src = "src"

[build]
build-dir = "$out"
use-default-preprocessors = false
END
mdbook build "$copy"
echo "$out/index.html"
