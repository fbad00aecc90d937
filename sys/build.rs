//! Build script: finds libdpdk and generates its bindings and the C code behind them. By default this is a shared
//! object with wrappers of inline functions and a table of all called functions; the crate holds it as bytes and
//! loads it. For static linking it is the wrappers and the list of archives. The functions of `events.c` are in a
//! second shared object, so that wedjat runs without librte_eventdev.
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// Oldest supported release of DPDK.
const MINIMUM: &str = "21.11";

/// Regular expressions for the functions that wedjat calls, inline or not.
const FUNCTIONS: &[&str] = &[
    "rte_eal_(init|cleanup|get_runtime_dir|has_hugepages)",
    "rte_(get_tsc_hz|get_tsc_cycles|lcore_id|strerror|version|openlog_stream|log_cur_msg_loglevel|thread_(un)?register)",
    "rte_intr_(callback_register|callback_unregister_pending|fd_set|instance_alloc|instance_free|type_set)",
    "rte_dev_(event_callback_register|probe|remove)",
    "rte_eth_dev_(adjust_nb_rx_tx_desc|callback_register|close|configure|default_mac_addr_set|fw_version_get)",
    "rte_eth_dev_(get_mtu|get_name_by_port|get_port_by_name|info_get|is_valid_port|reset|socket_id|start|stop|vlan_filter)",
    "rte_eth_dev_rss_(hash_conf_get|reta_update)",
    "rte_eth_dev_rx_offload_name",
    "rte_eth_dev_rx_intr_(ctl_q_get_fd|disable|enable)",
    "rte_eth_(allmulticast_enable|macaddr_get|promiscuous_enable|stats_get|xstats_get|xstats_get_names)",
    "rte_eth_(rx_burst|rx_queue_count|rx_queue_setup|tx_burst|tx_queue_setup)",
    "rte_softrss",
    "rte_pktmbuf_(alloc|chain|free|init|linearize|pool_create|pool_init)",
    "rte_mempool_(avail_count|create_empty|free|obj_iter|op_calc_mem_size_default|populate_iova|set_ops_byname)",
    "rte_mbuf_(best_mempool_ops|dyn_rx_timestamp_register)",
    "rte_ring_(create|free)",
    "rte_distributor_create",
    "rte_telemetry_register_cmd",
    "rte_tel_data_(start_dict|add_array_string|add_dict_string)",
    "wedjat_(errno|link_up|read_clock)",
    "wedjat_tel_.*",
    "wedjat_(rings|distributor)_.*",
];

/// Regular expressions for the constants. The types that the functions need come by themselves.
const CONSTANTS: &[&str] = &[
    "WEDJAT_.*",
    "RTE_MAX_LCORE",
    "RTE_MAX_ETHPORTS",
    "RING_F_S[PC]_(ENQ|DEQ)",
    "RTE_TEL_MAX_ARRAY_ENTRIES",
];

/// Finds libdpdk, generates the bindings, and then links its archives (static) or creates the shared object.
fn main() {
    println!("cargo::rerun-if-changed=wrapper.h");
    println!("cargo::rerun-if-changed=yardsticks.h");
    println!("cargo::rerun-if-changed=events.h");
    println!("cargo::rerun-if-changed=events.c");
    println!("cargo::rerun-if-env-changed=WEDJAT_DPDK_STATIC");
    let link_static = env::var_os("CARGO_FEATURE_STATIC").is_some()
        || env::var_os("WEDJAT_DPDK_STATIC").is_some_and(|value| value != "0");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    let library = find(link_static);
    // Dependent packages read it as DEP_DPDK_VERSION.
    println!("cargo::metadata=version={}", library.version);
    println!("cargo::rustc-env=WEDJAT_DPDK_VERSION={}", library.version);
    let flags = cflags();
    generate(&out, &flags);
    println!("cargo::rustc-check-cfg=cfg(dpdk_static)");
    if link_static {
        println!("cargo::rustc-cfg=dpdk_static");
        wrappers(&out, &flags).file("events.c").compile("wedjat_inline");
        link_archives(&library);
        for path in &library.link_paths {
            println!("cargo::rustc-link-search=native={}", path.display());
        }
    } else {
        let functions = call_by_table(&out);
        link_table(&out, &flags, &library, &functions);
        let events = optimized(&flags).file("events.c").compile_intermediates();
        link_shared_object(&out.join("events.so"), &library, &events);
    }
}

/// Finds the installed libdpdk, or stops with an explanation.
fn find(link_static: bool) -> pkg_config::Library {
    pkg_config::Config::new()
        .atleast_version(MINIMUM)
        .statik(link_static)
        .cargo_metadata(false)
        .env_metadata(true)
        .probe("libdpdk")
        .unwrap_or_else(|error| refuse(&error))
}

/// Stops with a one-line message: pkg-config or libdpdk is missing, or the installed libdpdk is unusable.
fn refuse(error: &pkg_config::Error) -> ! {
    let found = Command::new("pkg-config")
        .args(["--modversion", "libdpdk"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let problem = match (found, error) {
        (Some(version), _) => format!(
            "libdpdk {version} is older than {MINIMUM} or lacks one of its own requirements"
        ),
        (None, pkg_config::Error::Command { .. }) => "pkg-config is not installed".to_owned(),
        (None, _) => format!("pkg-config finds no libdpdk (>= {MINIMUM})"),
    };
    stop(&format!(
        "{problem}: install libdpdk-dev and pkg-config (Debian, Ubuntu) or dpdk-devel (Fedora), set PKG_CONFIG_PATH for \
         a DPDK of your own, or build without DPDK: cargo build --no-default-features --features wedjat/cli"
    ))
}

/// Stops the build with this message.
fn stop(message: &str) -> ! {
    // This line makes cargo stop. An exit status other than 0 would bury it under the script's output.
    println!("cargo::error={message}");
    exit(0)
}

/// Returns DPDK's own compiler flags, in order. The pkg-config crate would drop the argument of `-include`.
fn cflags() -> Vec<String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
    let output = Command::new(program)
        .args(["--cflags", "libdpdk"])
        .output()
        .unwrap_or_else(|error| stop(&format!("pkg-config --cflags libdpdk: {error}")));
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
}

/// Generates `bindings.rs`, and `inline.c` with the wrappers of inline functions.
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
        .wrap_static_fns_path(out.join("inline"))
        .allowlist_type("wedjat_event_functions");
    for pattern in FUNCTIONS {
        builder = builder.allowlist_function(pattern);
    }
    for pattern in CONSTANTS {
        builder = builder.allowlist_var(pattern);
    }
    // bindgen panics if libclang is missing.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()))
        .unwrap_or_else(|_| stop("libclang is missing: install libclang-dev (Debian, Ubuntu) or clang-devel (Fedora)"))
        .unwrap_or_else(|error| {
            stop(&format!("bindgen cannot read DPDK's headers: {error}"))
        })
        .write_to_file(out.join("bindings.rs"))
        .unwrap_or_else(|error| stop(&format!("cannot write bindings.rs: {error}")));
}

/// Returns the build of the wrappers.
fn wrappers(out: &Path, flags: &[String]) -> cc::Build {
    let mut build = optimized(flags);
    build.file(out.join("inline.c"));
    build
}

/// Returns a build without files. Its code is on the packet path, so it is optimized in every profile.
fn optimized(flags: &[String]) -> cc::Build {
    let mut build = cc::Build::new();
    build.include(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    for flag in flags {
        build.flag(flag);
    }
    build.opt_level(3).warnings(false).pic(true);
    build
}

/// Replaces the declarations in the bindings by functions that call the entries of the table `FUNCTIONS`.
/// Returns the names of the functions for the table, in order.
fn call_by_table(out: &Path) -> Vec<String> {
    let path = out.join("bindings.rs");
    let text = fs::read_to_string(&path).expect("it was just written");
    let mut file = syn::parse_file(&text).expect("bindgen writes Rust");
    let mut names = Vec::new();
    let mut functions = Vec::new();
    file.items.retain(|item| {
        let syn::Item::ForeignMod(foreign) = item else { return true };
        for item in &foreign.items {
            let syn::ForeignItem::Fn(declared) = item else {
                stop("DPDK's bindings declare more than functions")
            };
            functions.push(function(declared, names.len()));
            names.push(symbol(declared));
        }
        false
    });
    let count = names.len();
    file.items.push(syn::parse_quote!(
        const COUNT: usize = #count;
    ));
    file.items.extend(functions);
    fs::write(path, prettyplease::unparse(&file)).expect("it was just written");
    names
}

/// Returns the name of a declared function in the object. bindgen renames wrappers of inline functions.
fn symbol(declared: &syn::ForeignItemFn) -> String {
    let renamed = declared.attrs.iter().find_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("link_name") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(name), .. }) => Some(name.value()),
            _ => None,
        },
        _ => None,
    });
    // A leading \u{1} makes LLVM keep the name unchanged.
    renamed.map_or_else(
        || declared.sig.ident.to_string(),
        |name| name.trim_start_matches('\u{1}').to_owned(),
    )
}

/// Returns the source of a function with this declaration that calls the entry `index` of the table.
fn function(declared: &syn::ForeignItemFn, index: usize) -> syn::Item {
    let syn::Signature { ident, inputs, output, .. } = &declared.sig;
    let (mut names, mut types) = (Vec::new(), Vec::new());
    for input in inputs {
        let syn::FnArg::Typed(input) = input else { stop("a function of DPDK's has a `self`") };
        names.push(&input.pat);
        types.push(&input.ty);
    }
    syn::parse_quote! {
        #[inline(always)]
        pub unsafe extern "C" fn #ident(#inputs) #output {
            unsafe {
                let entry_address = FUNCTIONS[#index].load(::core::sync::atomic::Ordering::Relaxed);
                let function: unsafe extern "C" fn(#(#types),*) #output = ::core::mem::transmute(entry_address);
                function(#(#names),*)
            }
        }
    }
}

/// Links the wrappers and a table of all functions with libdpdk. The program holds the object as bytes, so it
/// starts without libdpdk. When the object is loaded, the system finds the libraries and names missing ones.
fn link_table(out: &Path, flags: &[String], library: &pkg_config::Library, functions: &[String]) {
    let declared: String = functions.iter().map(|name| format!("void {name}(void);\n")).collect();
    let listed: String = functions.iter().map(|name| format!("\t(void *){name},\n")).collect();
    let table = format!("{declared}void *const wedjat_functions[] = {{\n{listed}}};\n");
    let source = out.join("table.c");
    fs::write(&source, table).unwrap_or_else(|error| stop(&format!("table.c: {error}")));
    let objects = [
        wrappers(out, flags).compile_intermediates(),
        cc::Build::new().file(source).warnings(false).pic(true).compile_intermediates(),
    ];
    link_shared_object(&out.join("dpdk.so"), library, &objects.concat());
}

/// Links these objects with libdpdk as the shared object `path`.
fn link_shared_object(path: &Path, library: &pkg_config::Library, objects: &[PathBuf]) {
    // `defs` and `now` report a missing function here or at load, never at its first call. `-s` drops symbols.
    let mut link = optimized(&[]).get_compiler().to_command();
    link.args(["-shared", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,--as-needed", "-Wl,-s", "-o"]);
    link.arg(path).args(objects);
    link.args(library.link_paths.iter().map(|path| format!("-L{}", path.display())));
    link.args(library.libs.iter().map(|name| format!("-l{name}")));
    match link.output() {
        Ok(linked) if linked.status.success() => {}
        Ok(linked) => {
            let errors = String::from_utf8_lossy(&linked.stderr).trim().replace('\n', "; ");
            stop(&format!("libdpdk lacks what wedjat calls, or can't be linked: {errors}"))
        }
        Err(error) => stop(&format!("the C compiler does not start: {error}")),
    }
}

/// Links every DPDK archive whole, as libdpdk.pc requires; DPDK's own dependencies are linked shared.
///
/// `-bundle` keeps the archives out of this crate's rlib, so that the final link gets them once and whole.
/// The `.pc` file also names the static dependencies of those shared libraries. These are not needed and
/// often not installed, so only libraries that the compiler finds are passed on.
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

/// Returns the name of a DPDK archive: `rte_eal` for `-l:librte_eal.a` and `rte_eal`. `None` for other libraries.
fn archive_name(name: &str) -> Option<String> {
    let name = name.trim_start_matches("-l").trim_start_matches(":lib").trim_end_matches(".a");
    name.starts_with("rte_").then(|| name.to_owned())
}

/// Returns true if the linker would find this shared library.
fn shared_exists(name: &str, folders: &[PathBuf]) -> bool {
    let file = format!("lib{name}.so");
    let known_to_compiler = Command::new("cc")
        .arg(format!("-print-file-name={file}"))
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains('/'));
    known_to_compiler || folders.iter().any(|folder| folder.join(&file).exists())
}
