//! Finds libdpdk, generates its bindings, compiles wrappers of its inline functions and says what to link.
use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const MINIMUM: &str = "21.11";

/// Functions, inline or not, that wedjat calls.
const FUNCTIONS: &[&str] = &[
    "rte_eal_(init|cleanup|get_runtime_dir|has_hugepages)",
    "rte_(get_tsc_hz|get_tsc_cycles|lcore_id|strerror|version|openlog_stream|log_cur_msg_loglevel|thread_(un)?register)",
    "rte_intr_(callback_register|callback_unregister_pending|fd_set|instance_alloc|instance_free|type_set)",
    "rte_eth_dev_(adjust_nb_rx_tx_desc|close|configure|get_name_by_port|get_port_by_name|info_get)",
    "rte_eth_dev_(get_mtu|is_valid_port|rss_hash_conf_get|socket_id|start|stop)",
    "rte_eth_(macaddr_get|promiscuous_enable|stats_get|xstats_get|xstats_get_names)",
    "rte_eth_(rx_burst|rx_queue_setup|tx_burst|tx_queue_setup)",
    "rte_pktmbuf_(alloc|chain|free|init|pool_create|pool_init)",
    "rte_mempool_(avail_count|create_empty|free|obj_iter|op_calc_mem_size_default|populate_iova|set_ops_byname)",
    "rte_mbuf_best_mempool_ops",
    "rte_ring_(create|free)",
    "rte_distributor_create",
    "rte_telemetry_register_cmd",
    "rte_tel_data_(start_dict|add_array_string|add_dict_string)",
    "wedjat_(errno|link_up)",
    "wedjat_tel_.*",
    "wedjat_(rings|distributor)_.*",
];

/// Constants, beyond the types that the functions bring along.
const CONSTANTS: &[&str] = &[
    "WEDJAT_.*",
    "RTE_MAX_LCORE",
    "RTE_MAX_ETHPORTS",
    "RING_F_S[PC]_(ENQ|DEQ)",
    "RTE_TEL_MAX_ARRAY_ENTRIES",
];

fn main() {
    println!("cargo::rerun-if-changed=wrapper.h");
    println!("cargo::rerun-if-changed=yardsticks.h");
    println!("cargo::rerun-if-env-changed=WEDJAT_DPDK_STATIC");
    let link_static = env::var_os("CARGO_FEATURE_STATIC").is_some()
        || env::var_os("WEDJAT_DPDK_STATIC").is_some_and(|value| value != "0");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    let library = find(link_static);
    let flags = cflags();
    generate(&out, &flags);
    compile_wrappers(&out, &flags);
    println!("cargo::rustc-check-cfg=cfg(dpdk_static)");
    if link_static {
        println!("cargo::rustc-cfg=dpdk_static");
        link_archives(&library);
    } else {
        library.libs.iter().for_each(|name| println!("cargo::rustc-link-lib=dylib={name}"));
    }
    for path in &library.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
}

fn find(link_static: bool) -> pkg_config::Library {
    pkg_config::Config::new()
        .atleast_version(MINIMUM)
        .statik(link_static)
        .cargo_metadata(false)
        .env_metadata(true)
        .probe("libdpdk")
        .unwrap_or_else(|error| refuse(&error))
}

/// One line for people; the details of pkg-config's search follow only where it found a library it cannot use.
fn refuse(error: &pkg_config::Error) -> ! {
    let found = Command::new("pkg-config")
        .args(["--modversion", "libdpdk"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let what = match (found, error) {
        (Some(version), _) => format!(
            "libdpdk {version} is older than {MINIMUM} or lacks one of its own requirements"
        ),
        (None, pkg_config::Error::Command { .. }) => "pkg-config is not installed".to_owned(),
        (None, _) => format!("pkg-config finds no libdpdk (>= {MINIMUM})"),
    };
    stop(&format!(
        "{what}: install libdpdk-dev and pkg-config (Debian, Ubuntu) or dpdk-devel (Fedora), set PKG_CONFIG_PATH for \
         a DPDK of your own, or build without DPDK: cargo build --no-default-features"
    ))
}

fn stop(message: &str) -> ! {
    // Cargo stops on this line by itself; a status other than 0 would bury it under the script's whole output.
    println!("cargo::error={message}");
    exit(0)
}

/// DPDK's own compiler flags, in order: its `-include` takes an argument that the crate pkg-config would drop.
fn cflags() -> Vec<String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
    let output = Command::new(program)
        .args(["--cflags", "libdpdk"])
        .output()
        .unwrap_or_else(|error| stop(&format!("pkg-config --cflags libdpdk: {error}")));
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
}

fn generate(out: &Path, flags: &[String]) {
    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(flags)
        .opaque_type("rte_mbuf")
        .opaque_type("rte_mempool")
        .opaque_type("rte_ring")
        .opaque_type("rte_distributor")
        .opaque_type("rte_tel_data")
        .blocklist_type("FILE|_IO_.*")
        .derive_default(true)
        .layout_tests(false)
        .generate_comments(false)
        .prepend_enum_name(false)
        .wrap_static_fns(true)
        .wrap_static_fns_path(out.join("inline"));
    for pattern in FUNCTIONS {
        builder = builder.allowlist_function(pattern);
    }
    for pattern in CONSTANTS {
        builder = builder.allowlist_var(pattern);
    }
    // bindgen reports a missing libclang by panicking.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()))
        .unwrap_or_else(|_| stop("libclang is missing: install libclang-dev (Debian, Ubuntu) or clang-devel (Fedora)"))
        .unwrap_or_else(|error| {
            stop(&format!("bindgen cannot read DPDK's headers: {error}"))
        })
        .write_to_file(out.join("bindings.rs"))
        .unwrap_or_else(|error| stop(&format!("cannot write bindings.rs: {error}")));
}

/// The wrappers stand on the packet path, so they are optimised in every profile.
fn compile_wrappers(out: &Path, flags: &[String]) {
    let mut build = cc::Build::new();
    build
        .file(out.join("inline.c"))
        .include(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    for flag in flags {
        build.flag(flag);
    }
    build.opt_level(3).warnings(false).compile("wedjat_inline");
}

/// Every DPDK archive whole, as libdpdk.pc asks for; what DPDK itself needs is linked shared.
///
/// `-bundle` keeps the archives out of this crate's rlib, so that they reach the final link once and whole.
/// The `.pc` file also names the static dependencies of those shared libraries, which are not needed and often not
/// installed, so only what the compiler finds is passed on.
fn link_archives(library: &pkg_config::Library) {
    let folders = &library.link_paths;
    let archives: BTreeSet<String> = library
        .ld_args
        .iter()
        .flatten()
        .chain(&library.libs)
        .filter_map(|name| archive_name(name))
        .collect();
    for name in &archives {
        println!("cargo::rustc-link-lib=static:+whole-archive,-bundle={name}");
    }
    for name in library.libs.iter().filter(|name| archive_name(name).is_none()) {
        if shared_exists(name, folders) {
            println!("cargo::rustc-link-lib=dylib={name}");
        }
    }
}

/// `:librte_eal.a` and `rte_eal` are both the archive `rte_eal`.
fn archive_name(name: &str) -> Option<String> {
    let name = name.trim_start_matches("-l").trim_start_matches(":lib").trim_end_matches(".a");
    name.starts_with("rte_").then(|| name.to_owned())
}

fn shared_exists(name: &str, folders: &[PathBuf]) -> bool {
    let file = format!("lib{name}.so");
    let known_to_compiler = Command::new("cc")
        .arg(format!("-print-file-name={file}"))
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains('/'));
    known_to_compiler || folders.iter().any(|folder| folder.join(&file).exists())
}
