//! With the feature `library`, finds librocksdb and generates bindings of the functions that `src/database.rs` calls.
//! The feature `rocksdb` of wedjat-testbed enables `library`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "library")]
    library::bind();
}

#[cfg(feature = "library")]
mod library {
    use std::env;
    use std::path::PathBuf;
    use std::process::exit;

    /// Oldest accepted release: the first of Debian 12's major version. Older ones have the functions below, too.
    const MINIMUM: &str = "7.0";

    /// Functions that `src/database.rs` calls, as regular expressions.
    const FUNCTIONS: &[&str] = &[
        "rocksdb_(open|open_for_read_only|close|put|flush|get_pinned|create_iterator|free)",
        "rocksdb_options_(create|destroy|set_(create_if_missing|error_if_exists|compression))",
        "rocksdb_options_set_block_based_table_factory",
        "rocksdb_block_based_options_(create|destroy|set_block_cache)",
        "rocksdb_cache_(create_lru|destroy)",
        "rocksdb_(read|write|flush)options_(create|destroy)",
        "rocksdb_writeoptions_disable_WAL",
        "rocksdb_pinnableslice_(value|destroy)",
        "rocksdb_iter_(destroy|seek_to_first|valid|next|key|value|get_error)",
    ];

    /// Finds the library, tells cargo to link it, and writes the bindings to `bindings.rs` in the output folder.
    pub fn bind() {
        let library = pkg_config::Config::new().atleast_version(MINIMUM).probe("rocksdb").unwrap_or_else(|_| {
            stop("pkg-config finds no rocksdb (>= 7.0): install librocksdb-dev (Debian, Ubuntu) or rocksdb-devel (Fedora), \
                  or build without the feature `rocksdb`")
        });
        let includes = library.include_paths.iter().map(|path| format!("-I{}", path.display()));
        let mut builder = bindgen::Builder::default()
            .header_contents("wrapper.h", "#include <rocksdb/c.h>")
            .clang_args(includes)
            .layout_tests(false)
            .generate_comments(false);
        for pattern in FUNCTIONS {
            builder = builder.allowlist_function(pattern);
        }
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        builder
            .generate()
            .unwrap_or_else(|error| stop(&format!("bindgen cannot read rocksdb/c.h: {error}")))
            .write_to_file(out.join("bindings.rs"))
            .unwrap_or_else(|error| stop(&format!("cannot write bindings.rs: {error}")));
    }

    /// Stops the build with this message.
    fn stop(message: &str) -> ! {
        // This line makes cargo stop the build. With an exit status other than 0, cargo would also print the script's
        // whole output.
        println!("cargo::error={message}");
        exit(0)
    }
}
