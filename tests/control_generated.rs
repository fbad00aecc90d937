//! The code of the control's gRPC is what its .proto says.
#![cfg(feature = "control")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

use tonic_prost_build::{Config, configure};

/// Holds a file against what it is to be. With WRITE_GENERATED=1 in the environment it writes it.
fn assert_generated(path: &Path, wanted: &[u8]) {
    if std::env::var_os("WRITE_GENERATED").is_some() {
        return fs::write(path, wanted).unwrap();
    }
    let how = "WRITE_GENERATED=1 cargo test --test control_generated";
    assert!(fs::read(path).unwrap() == wanted, "{}: {how} makes it as it is to be", path.display());
}

#[test]
fn the_generated_code_is_that_of_the_proto_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile(["wedjat/v1/control.proto"], [root.join("proto")]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let descriptor = folder.path().join("descriptor.bin");
    let mut config = Config::new();
    config.btree_map(["."]).file_descriptor_set_path(&descriptor);
    config.type_attribute(".", "#[derive(serde::Serialize)]");
    configure()
        .out_dir(folder.path())
        .emit_rerun_if_changed(false)
        .compile_fds_with_config(files.clone(), config)
        .unwrap();
    let code = fs::read_to_string(folder.path().join("wedjat.v1.rs")).unwrap();
    let head = "//! Messages and calls of proto/wedjat/v1/control.proto; tests/control_generated.rs writes this file.\n";
    let admin = root.join("dataplane/admin");
    assert_generated(&admin.join("generated.rs"), format!("{head}{code}").as_bytes());
    let set = prost::Message::encode_to_vec(&files);
    assert_generated(&admin.join("descriptor.bin"), &set);
}
