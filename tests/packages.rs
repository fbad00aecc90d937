//! Debian packages of `make deb`, C programs built against them, and the crates for crates.io. The tests install into
//! folders of their own, not into the system.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../testbed/src/free_address.rs"]
mod free_address;
mod installing;
mod own_header;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use free_address::free_address;
use installing::*;

/// Packages, each with the beginning of its dependencies.
const PACKAGES: [(&str, &str); 4] = [
    ("libwedjat-dev", "libwedjat0 (= 0.1.0-1)"),
    ("libwedjat0", "libc6 (>= "),
    ("wedjat", "libc6 (>= "),
    ("wedjat-dbg", "libwedjat0 (= 0.1.0-1), wedjat (= 0.1.0-1)"),
];
/// Programs of the packages.
const COMMANDS: [&str; 3] = ["wedjat", "wedjat-pktgen", "wedjat-testbed"];
/// Greatest size of the static library, in bytes.
const ARCHIVE_MAX: u64 = 25_000_000;

/// Returns true if `program` is installed. Prints a note otherwise.
fn has(program: &str, package: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        // Written directly to standard error, because the output of passing tests is hidden.
        let _ = writeln!(std::io::stderr(), "SKIPPED: there is no {program} (Debian: {package})");
    }
    is_there
}

/// Returns the output of a command that must succeed.
fn text(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).unwrap()
}

/// Returns the folder of the packages, which all tests share; `None` where they cannot be made.
fn packages() -> Option<&'static Path> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    if !has("dh_builddeb", "debhelper") {
        return None;
    }
    let folder = FOLDER.get_or_init(|| {
        let folder = empty_folder("packages");
        make(&["deb", &format!("OUT={}", folder.display())], installed());
        folder
    });
    Some(folder)
}

/// Returns the file of the package of this name.
fn package(folder: &Path, name: &str) -> PathBuf {
    let is_named = |file: &PathBuf| file.to_str().unwrap().starts_with(&format!("{name}_0.1.0-1_"));
    folder.join(files_below(folder).into_iter().find(is_named).unwrap())
}

/// A folder with its own package database, in which packages are installed.
struct Root(tempfile::TempDir);

impl Root {
    /// Installs all packages. dpkg refuses a file that is in two of them.
    fn with(folder: &Path) -> Self {
        let root = Self(tempfile::tempdir().unwrap());
        for folder in ["updates", "info"] {
            fs::create_dir_all(root.path().join("var/lib/dpkg").join(folder)).unwrap();
        }
        fs::write(root.path().join("var/lib/dpkg/status"), "").unwrap();
        let files = PACKAGES.map(|(name, _)| package(folder, name).display().to_string());
        root.dpkg("--install", &files.each_ref().map(String::as_str));
        root
    }

    /// Returns the folder.
    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs dpkg in this folder instead of the system. Missing dependencies are no error: the database is empty.
    fn dpkg(&self, action: &str, what: &[&str]) {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", self.path().display()));
        dpkg.args(["--force-depends", "--force-not-root", "--force-script-chrootless"]);
        run(dpkg.args(["--force-bad-path", action]).args(what));
    }

    /// Returns the folder of the libraries.
    fn libraries(&self) -> PathBuf {
        let is_library = |file: &PathBuf| file.ends_with("libwedjat.so");
        let lib = self.path().join("usr/lib");
        let library = files_below(&lib).into_iter().find(is_library).unwrap();
        lib.join(library.parent().unwrap())
    }
}

// promise: packages.2
#[test]
fn debian_packages_install_run_and_are_removed() {
    let Some(folder) = packages() else { return };
    assert_eq!(files_below(folder).len(), PACKAGES.len());
    for (name, needs) in PACKAGES {
        let depends =
            text(Command::new("dpkg-deb").arg("-f").arg(package(folder, name)).arg("Depends"));
        assert!(depends.starts_with(needs), "{name}: {depends}");
        assert_eq!(depends.contains("librte-eal"), name == "wedjat", "{name}: {depends}");
    }
    let control = |file: &str| {
        let library = package(folder, "libwedjat0");
        text(Command::new("dpkg-deb").arg("-I").arg(library).arg(file))
    };
    assert_eq!(control("shlibs"), "libwedjat 0 libwedjat0 (>= 0.1.0)\n");
    assert!(control("symbols").contains("\n wedjat_pick@WEDJAT_0.1 0.1.0\n"));
    assert!(control("triggers").contains("ldconfig"));

    let root = Root::with(folder);
    let usr = root.path().join("usr");
    assert_eq!(as_installed(&usr), files_below(installed()), "the files of make install");
    assert!(root.path().join("etc/wedjat").is_dir());
    let unit = fs::read_to_string(usr.join("lib/systemd/system/wedjat-leaf@.service")).unwrap();
    assert!(
        unit.contains("ExecStart=/usr/bin/wedjat leaf") && !unit.contains("@PREFIX@"),
        "{unit}"
    );
    for command in COMMANDS {
        run(Command::new(usr.join("bin").join(command)).arg("--version"));
    }
    let examples = usr.join("share/doc/wedjat/examples");
    for example in ["leaf.toml", "agent.toml", "agent-leaf.toml"] {
        let check = ["check", "--config"];
        run(Command::new(usr.join("bin/wedjat")).args(check).arg(examples.join(example)));
    }
    assert!(examples.join("grafana.json").exists());
    programs_have_debug_files(&root);

    root.dpkg("--purge", &PACKAGES.map(|(name, _)| name));
    let left = files_below(root.path());
    let left: Vec<_> = left.into_iter().filter(|path| !path.starts_with("var")).collect();
    assert!(left.is_empty() && !usr.exists() && !root.path().join("etc").exists(), "{left:?}");
}

/// Returns the files of the packages under the names that `make install` gives them, and checks those that Debian's
/// policy adds.
fn as_installed(usr: &Path) -> Vec<PathBuf> {
    let mut files = BTreeSet::new();
    for file in files_below(usr) {
        let path = file.to_str().unwrap();
        let is_page = path.starts_with("share/man/");
        assert!(!is_page || path.ends_with(".gz"), "{path}");
        let is_added = path.starts_with("lib/debug/") || path.contains("/changelog.");
        let is_copyright = path.ends_with("/copyright");
        if is_copyright {
            let licence = fs::read_to_string(usr.join(path)).unwrap();
            assert!(licence.starts_with("Format: ") && licence.contains("Apache-2.0"), "{path}");
        }
        if is_added || is_copyright && !path.starts_with("share/doc/wedjat/") {
            continue;
        }
        let path = path.strip_suffix(".gz").filter(|_| is_page).unwrap_or(path);
        let path = path.replace("zsh/vendor-completions", "zsh/site-functions");
        let parts = path.split('/').filter(|part| !part.contains("-linux-gnu"));
        files.insert(parts.collect::<PathBuf>());
    }
    for (name, _) in PACKAGES {
        for document in ["changelog.Debian.gz", "copyright"] {
            assert!(usr.join("share/doc").join(name).join(document).exists(), "{name}: {document}");
        }
    }
    files.into_iter().collect()
}

/// Checks that the debug information of each program lies where its build ID says.
fn programs_have_debug_files(root: &Root) {
    let usr = root.path().join("usr");
    let programs = COMMANDS.map(|command| usr.join("bin").join(command));
    for program in programs.into_iter().chain([root.libraries().join("libwedjat.so")]) {
        let notes = text(Command::new("readelf").arg("--notes").arg(&program));
        let id = notes.split("Build ID: ").nth(1).unwrap().lines().next().unwrap();
        let debug = format!("lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
        let sections = |file: &Path| text(Command::new("readelf").args(["-SW"]).arg(file));
        assert!(sections(&usr.join(debug)).contains(".debug_line"), "{program:?}");
        assert!(!sections(&program).contains(".debug_line"), "{program:?}");
    }
}

// promise: packages.2
#[test]
fn debian_packages_are_reproducible() {
    let Some(first) = packages() else { return };
    let second = tempfile::tempdir().unwrap();
    let mut again = Command::new(Path::new(SOURCE).join("scripts/deb.sh"));
    again.arg(target().join("debug")).arg(second.path()).env("TZ", "Asia/Tokyo");
    run(again.env("LC_ALL", "C.UTF-8"));
    for (name, _) in PACKAGES {
        let bytes = |folder: &Path| fs::read(package(folder, name)).unwrap();
        assert!(bytes(first) == bytes(second.path()), "{name} differs");
    }
}

// promise: packages.2
#[test]
fn lintian_finds_no_error() {
    let Some(folder) = packages().filter(|_| has("lintian", "lintian")) else { return };
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error"]);
    let output = lintian.args(PACKAGES.map(|(name, _)| package(folder, name))).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Runs the built `own_header.c` as a server, checks that it serves all tasks of a test client, and stops it.
fn example_serves(program: &Path, libraries: &Path) {
    let config = program.with_extension("toml");
    fs::write(&config, own_header::TEXT).unwrap();
    let address = free_address().unwrap();
    let mut serving = Command::new(program);
    serving.arg(&config).arg(address.port().to_string()).env("LD_LIBRARY_PATH", libraries);
    let mut serving = serving.spawn().unwrap();
    let done = std::panic::catch_unwind(|| own_header::tasks_are_done(address));
    let _ = serving.kill();
    serving.wait().unwrap();
    done.unwrap();
}

/// Returns true if the program is linked with the shared library.
fn is_shared(program: &Path) -> bool {
    text(Command::new("readelf").arg("-dW").arg(program)).contains("[libwedjat.so.0]")
}

// promise: packages.2
#[test]
fn c_program_builds_against_the_packages() {
    let Some(folder) = packages() else { return };
    let root = Root::with(folder);
    let libraries = root.libraries();
    let size = fs::metadata(libraries.join("libwedjat.a")).unwrap().len();
    assert!(size < ARCHIVE_MAX, "libwedjat.a has {size} bytes");

    let example = Path::new(SOURCE).join("examples/own_header.c");
    let programs = tempfile::tempdir().unwrap();
    for (name, linking) in [("shared", None), ("static", Some("-static"))] {
        let mut flags = Command::new("pkg-config");
        flags.args(linking.map(|_| "--static")).args(["--cflags", "--libs", "wedjat"]);
        flags.env("PKG_CONFIG_LIBDIR", libraries.join("pkgconfig"));
        flags.env("PKG_CONFIG_SYSROOT_DIR", root.path());
        let flags = text(
            flags
                .env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1")
                .env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1"),
        );
        let program = programs.path().join(name);
        let mut cc = Command::new("cc");
        cc.args(linking).arg("-o").arg(&program).arg(&example);
        run(cc.args(flags.split_whitespace()));
        assert_eq!(is_shared(&program), linking.is_none(), "{name}");
        example_serves(&program, &libraries);
    }
    archive_stands_beside_another_rust_library(&libraries, &root.path().join("usr/include"));

    if !has("cmake", "cmake") {
        return;
    }
    let project = programs.path().join("CMakeLists.txt");
    let text = format!(
        "cmake_minimum_required(VERSION 3.13)\nproject(example C)\n\
         find_package(wedjat 1.0 QUIET)\n\
         if(wedjat_FOUND)\nmessage(FATAL_ERROR \"0.1 is taken for 1.0\")\nendif()\n\
         find_package(wedjat 0.1 REQUIRED)\n\
         foreach(kind wedjat static)\n\
         add_executable(${{kind}} {})\n\
         target_link_libraries(${{kind}} PRIVATE wedjat::${{kind}})\nendforeach()\n",
        example.display()
    );
    fs::write(project, text).unwrap();
    let build = programs.path().join("build");
    let mut cmake = Command::new("cmake");
    cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", root.path().join("usr").display()));
    run(cmake.arg("-S").arg(programs.path()).arg("-B").arg(&build));
    run(Command::new("cmake").arg("--build").arg(&build));
    for (name, shared) in [("wedjat", true), ("static", false)] {
        let program = build.join(name);
        assert_eq!(is_shared(&program), shared, "{name}");
        example_serves(&program, &libraries);
    }
}

/// Links the static library and a second one written in Rust into one program. Both contain Rust's runtime, whose
/// symbols must not collide.
fn archive_stands_beside_another_rust_library(libraries: &Path, headers: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let rust = "#[unsafe(no_mangle)]\npub extern \"C\" fn other() -> i32 {\n    \
                std::panic::catch_unwind(|| \"7\".repeat(1).parse().unwrap()).unwrap_or(0)\n}\n";
    fs::write(path("other.rs"), rust).unwrap();
    let c = "#include <wedjat.h>\nint other(void);\n\
             int main(void) { return other() != 7 || wedjat_free(NULL) != WEDJAT_ERROR_NULL; }\n";
    fs::write(path("main.c"), c).unwrap();
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition=2024", "--crate-type=staticlib", "-o"]).arg(path("libother.a"));
    run(rustc.arg(path("other.rs")));
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(path("main")).arg(path("main.c")).arg("-I").arg(headers);
    cc.arg(libraries.join("libwedjat.a")).arg(path("libother.a"));
    run(cc.args(["-lutil", "-lrt", "-lpthread", "-lm", "-ldl"]));
    run(&mut Command::new(path("main")));
}

/// Checks that all sources that cargo read to build the published crates are in their packages.
// promise: packages.2
#[test]
fn published_crates_contain_their_sources() {
    // Returns the output of `cargo package --list`: the files of a package, one per line.
    let list = |arguments: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["package", "--list", "--allow-dirty", "--exclude-lockfile", "--offline"]);
        text(as_from_a_shell(cargo.current_dir(SOURCE).args(arguments)))
    };
    let root = Path::new(SOURCE);
    let mut packaged = BTreeSet::new();
    let crates = [("wedjat", ""), ("wedjat-cosched", "cosched"), ("wedjat-learner", "learner")];
    let layers = ["admin", "assembly", "batch", "core", "desired", "dpdk", "fabric", "node"];
    let layers = layers.map(|name| (format!("wedjat-{name}"), format!("dataplane/{name}")));
    let others = crates.into_iter().chain([("wedjat-sys", "sys"), ("wedjat-pktgen", "pktgen")]);
    let others = others.chain([("wedjat-sim", "sim"), ("wedjat-workload", "workload")]);
    let others = others.map(|(name, folder)| (name.to_owned(), folder.to_owned()));
    for (name, folder) in others.chain(layers) {
        let files = list(&["-p", &name]);
        packaged.extend(files.lines().map(|file| root.join(&folder).join(file)));
    }
    installed(); // a build writes, beside each program, a file `.d` with all sources that it read
    let mut read = 0;
    for command in ["wedjat", "wedjat-pktgen"] {
        let list = fs::read_to_string(target().join(format!("debug/{command}.d"))).unwrap();
        // The build script reads the revision from the repository.
        let outside =
            |path: &Path| path.starts_with(target()) || path.starts_with(root.join(".git"));
        let sources = list.split_whitespace().map(Path::new).filter(|path| path.starts_with(root));
        for source in sources.filter(|path| !outside(path)) {
            assert!(packaged.contains(source), "{source:?} is in no package");
            read += 1;
        }
    }
    assert!(read > 300, "{read} sources");
}
