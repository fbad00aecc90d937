//! Comparison of the checked-in gRPC code with the .proto files: of a node's control, of the controller (fabric), and
//! of the used part of etcd. The code is checked in, so a build needs neither protoc nor a generator.
#![cfg(feature = "admin")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

use tonic_prost_build::{Config, configure};

/// Asserts that a file has this content. If the environment has WRITE_GENERATED, writes the file instead: the test is
/// also the generator.
fn assert_generated(path: &Path, wanted: &[u8]) {
    if std::env::var_os("WRITE_GENERATED").is_some() {
        return fs::write(path, wanted).unwrap();
    }
    let how = "WRITE_GENERATED=1 cargo test --test control_generated";
    assert!(fs::read(path).unwrap() == wanted, "{}: {how} makes it as it is to be", path.display());
}

/// Generates the code of `proto` (a file below proto/, with this package) and compares it with the file `code`. Without
/// `descriptor`, the code has only the client's half. With it, also compares that file with the descriptor set, which
/// a server publishes for reflection.
fn assert_is_of(proto: &str, package: &str, code: &str, descriptor: Option<&str>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile([proto], [root.join("proto")]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("descriptor.bin");
    let mut config = Config::new();
    config.btree_map(["."]).file_descriptor_set_path(&made);
    config.type_attribute(".", "#[derive(serde::Serialize)]");
    configure()
        .out_dir(folder.path())
        .emit_rerun_if_changed(false)
        .build_server(descriptor.is_some())
        .compile_fds_with_config(files.clone(), config)
        .unwrap();
    let text = fs::read_to_string(folder.path().join(format!("{package}.rs"))).unwrap();
    let head = format!(
        "//! Messages and calls of proto/{proto}; tests/control_generated.rs writes this file.\n"
    );
    assert_generated(&root.join(code), format!("{head}{text}").as_bytes());
    if let Some(descriptor) = descriptor {
        assert_generated(&root.join(descriptor), &prost::Message::encode_to_vec(&files));
    }
}

// promise: control.1
#[test]
fn generated_code_matches_the_proto_files() {
    let (code, descriptor) = ("dataplane/admin/generated.rs", "dataplane/admin/descriptor.bin");
    assert_is_of("wedjat/v1/control.proto", "wedjat.v1", code, Some(descriptor));
    let folder = "dataplane/fabric";
    let (code, descriptor) = (format!("{folder}/generated.rs"), format!("{folder}/descriptor.bin"));
    assert_is_of("wedjat/fabric/v1/fabric.proto", "wedjat.fabric.v1", &code, Some(&descriptor));
    assert_is_of("etcd/rpc.proto", "etcdserverpb", &format!("{folder}/etcd_api.rs"), None);
}
