//! Build script: generates the C header `wedjat.h` with cbindgen, and a manual page for each of its functions.
//! Both contain the doc comments of the Rust sources. scripts/link-library.sh links the shared library.
mod manual;

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Sources in the order of the header.
const SOURCES: [&str; 10] = [
    "src/code.rs",
    "src/log.rs",
    "src/types.rs",
    "src/handle.rs",
    "src/create.rs",
    "src/calls.rs",
    "src/tasks.rs",
    "src/change.rs",
    "src/worker.rs",
    "src/share.rs",
];
/// Source of the enum of drop reasons: a macro call `reasons!` with a table of variants and their keys.
const REASONS: &str = "../dataplane/core/reason.rs";

fn main() {
    for source in SOURCES.iter().chain(&[REASONS, "cbindgen.toml", "build.rs", "manual.rs"]) {
        println!("cargo::rerun-if-changed={source}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // OUT_DIR is target/PROFILE/build/PACKAGE/out. Installation and tests look for header and manual pages in
    // target/PROFILE, beside the libraries.
    let folder = out.ancestors().nth(3).unwrap_or(&out);
    if let Err(message) = header(folder, &out) {
        println!("cargo::error={message}");
    }
}

/// Writes the header and the manual pages into `folder`. Its temporary files go to `scratch`, a folder of the same
/// file system: one is a source for cbindgen with the enum of drop reasons.
fn header(folder: &Path, scratch: &Path) -> Result<(), String> {
    let text = fs::read_to_string(REASONS).map_err(|error| format!("{REASONS}: {error}"))?;
    let text = plain_enum(&text).ok_or(format!("{REASONS}: has no table `reasons!`"))?;
    let reasons = scratch.join("reason.rs");
    fs::write(&reasons, text).map_err(|error| format!("{}: {error}", reasons.display()))?;
    let config = cbindgen::Config::from_file("cbindgen.toml")?;
    let builder = cbindgen::Builder::new().with_config(config).with_src(&reasons);
    let builder = SOURCES.iter().fold(builder, |builder, source| builder.with_src(source));
    let bindings = builder.generate().map_err(|error| format!("wedjat.h: {error}"))?;
    let mut header = Vec::new();
    bindings.write(&mut header);
    let text = String::from_utf8(header).map_err(|error| format!("wedjat.h: {error}"))?;
    replace(&folder.join("include/wedjat.h"), in_c_words(&text), scratch)?;
    for (name, page) in manual::pages(&text, env!("CARGO_PKG_VERSION")) {
        replace(&folder.join("man3").join(name), page, scratch)?;
    }
    Ok(())
}

/// Returns the enum that the macro `reasons!` makes of the table in `source`: each line `Variant => ...;` becomes
/// `Variant,`, and other lines (comments) stay. Returns `None` without such a table. Needed because cbindgen does
/// not expand macros.
fn plain_enum(source: &str) -> Option<String> {
    let (_, table) = source.split_once("\nreasons! {\n")?;
    let (table, _) = table.split_once("\n}\n")?;
    let mut text = String::from(
        "/// Reason why a packet was dropped. Its number is the index of its counter.\n\
         #[repr(u8)]\npub enum DropReason {\n",
    );
    for line in table.lines() {
        match line.split_once(" => ") {
            Some((name, _)) => text.extend([name, ",\n"]),
            None => text.extend([line, "\n"]),
        }
    }
    Some(text + "}\n")
}

/// Returns the header with comments for readers of C: Markdown headings become plain words, and backticks go.
fn in_c_words(header: &str) -> String {
    let heads = [
        (" # Return value\n", " Returns:\n"),
        (" # Errors\n", " Errors:\n"),
        (" # Called from\n", " Called from:\n"),
        (" # Safety\n", " Requirements that the call does not check:\n"),
    ];
    let header = header.replace('`', "");
    heads.iter().fold(header, |header, (from, to)| header.replace(from, to))
}

/// Replaces a file by a new one with `content`, written in `scratch`, and creates the file's folder. A rename, because
/// builds with other settings run this script, too, while a compiler may read the file.
fn replace(path: &Path, content: String, scratch: &Path) -> Result<(), String> {
    let new = scratch.join("new");
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    folder
        .and_then(|()| fs::write(&new, content))
        .and_then(|()| fs::rename(&new, path))
        .map_err(|error| format!("{}: {error}", path.display()))
}
