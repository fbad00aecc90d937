//! Rules of the sources and documents, as tests: comments, names, line lengths, unsafe code, dependencies between files
//! and crates, links, and tables of the documents that must list all items of the code.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "tidy/counts.rs"]
mod counts;
#[path = "tidy/promises.rs"]
mod promises;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tables/table.rs"]
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use wedjat::admin::metrics::{Family, families};
use wedjat::config::keys::{self, Key};
use wedjat::reason::DropReason;
use wedjat::state::counters::{CounterKind, METRICS, Metric};

use table::assert_table;

/// Maximum number of characters of a line. rustfmt keeps code narrower, but does not wrap strings and comments.
const COLUMNS_MAX: usize = 150;

/// Returns the root folder of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the paths (from the root) and texts of the files with this ending: tracked files, and new files that git
/// does not ignore.
fn files(ending: &str) -> Vec<(PathBuf, String)> {
    let listed = Command::new("git")
        .current_dir(root())
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output();
    let names = match listed {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout).unwrap(),
        _ => walk(root()).join("\n"), // git failed: the sources are an unpacked archive
    };
    let read =
        |name: &str| Some((PathBuf::from(name), fs::read_to_string(root().join(name)).ok()?));
    names.lines().filter(|name| name.ends_with(ending)).filter_map(read).collect()
}

/// Returns the paths of all files below a folder, from the root. Does not enter hidden folders and `target`.
fn walk(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap_or_default());
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(walk(&path));
        } else if let Ok(inside) = path.strip_prefix(root()) {
            found.push(inside.display().to_string());
        }
    }
    found
}

/// Returns the lines that break a rule, each as "path:number: line", from all files with this ending. `breaks` gets
/// the path, the line's index from 0, and the line.
fn offences(ending: &str, breaks: impl Fn(&Path, usize, &str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files(ending) {
        for (at, line) in text.lines().enumerate().filter(|(at, line)| breaks(&path, *at, line)) {
            found.push(format!("{}:{}: {line}", path.display(), at + 1));
        }
    }
    found
}

/// Panics with the rule and all offences, if there are any.
fn assert_none(offences: &[String], rule: &str) {
    assert!(offences.is_empty(), "{rule}:\n{}", offences.join("\n"));
}

// promise: sources.1
#[test]
fn every_source_file_says_what_it_is_for() {
    let sources = files(".rs");
    assert!(sources.len() > 50, "the sources are found");
    let silent: Vec<_> = sources
        .iter()
        .filter(|(_, text)| !text.starts_with("//! ") && !text.starts_with("#![no_main]\n//! "))
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert_none(&silent, "files that do not open with a `//!` sentence");
}

/// Maxima of `Prose::per_thousand` for a folder. Per thousand blocks: those that begin with a clause. Per thousand
/// sentences: subordinating words, sentences with three or more of them, and sentences with an odd phrase.
const PROSE_MAX: [usize; 4] = [10, 480, 15, 5];
/// Minimum number of comment blocks in a folder (without subfolders) for a check of its own. The sum of all files is
/// always checked.
const COMMENTS_MIN: usize = 150;
/// Maximum number of words of a test's name.
const TEST_WORDS_MAX: usize = 8;

// promise: sources.1
#[test]
fn comments_are_plain() {
    let (mut folders, mut all) = (BTreeMap::<_, prose::Prose>::new(), prose::Prose::default());
    for ending in [".rs", ".c", ".h", ".proto"] {
        for (path, text) in files(ending) {
            let measured = prose::Prose::of(&text);
            let folder = path.parent().unwrap().to_owned();
            *folders.entry(folder).or_default() += measured;
            all += measured;
        }
    }
    folders.retain(|_, measured| measured.blocks >= COMMENTS_MIN);
    folders.insert(PathBuf::from("all files"), all);
    let is_hard = |measured: &prose::Prose| {
        measured.per_thousand().iter().zip(PROSE_MAX).any(|(&found, max)| found > max)
    };
    let hard = folders.iter().filter(|(_, measured)| is_hard(measured));
    let hard: Vec<_> = hard
        .map(|(folder, measured)| format!("{}: {:?}", folder.display(), measured.per_thousand()))
        .collect();
    assert_none(&hard, &format!("folders whose comments are above {PROSE_MAX:?}"));
}

// promise: sources.1
#[test]
fn test_names_are_short() {
    let (mut names, mut long) = (0, Vec::new());
    for (path, text) in files(".rs") {
        for name in prose::test_names(&text) {
            names += 1;
            if name.split('_').count() > TEST_WORDS_MAX {
                long.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(names > 1000, "{names} tests are found");
    assert_none(&long, &format!("test names of more than {TEST_WORDS_MAX} words"));
}

// promise: sources.1
#[test]
fn types_are_named_by_nouns() {
    let mut found = Vec::new();
    for (path, text) in files(".rs").iter().filter(|(path, _)| !path.ends_with("generated.rs")) {
        let names = prose::type_names(text);
        let bad = names.iter().filter(|name| prose::FORBIDDEN_TYPES.contains(&name.as_str()));
        found.extend(bad.map(|name| format!("{}: {name}", path.display())));
    }
    assert_none(&found, "types named by a participle, a pronoun or a question word");
}

// promise: sources.1
#[test]
fn nothing_is_left_undone_or_skipped() {
    // Assembled from parts, so that this file contains none of them.
    let stubs = ["todo", "unimplemented"].map(|word| format!("{word}!("));
    let markers = ["#[igno".to_owned() + "re", "FIX".to_owned() + "ME", "XX".to_owned() + "X"];
    let offends = |_: &Path, _: usize, line: &str| {
        stubs.iter().chain(&markers).any(|word| line.contains(word.as_str()))
    };
    assert_none(&offences(".rs", offends), "stubs, reminders and skipped tests");
}

// promise: sources.1
#[test]
fn lines_are_not_too_long() {
    // Rows of Markdown tables and texts of `#[error(...)]` cannot be wrapped.
    let long = |_: &Path, _: usize, line: &str| {
        line.chars().count() > COLUMNS_MAX && !line.contains("| ") && !line.contains("error(")
    };
    for ending in [".rs", ".md", ".sh", ".py"] {
        assert_none(&offences(ending, long), "lines that are too long");
    }
}

// promise: sources.1
#[test]
fn unsafe_code_stays_where_it_is_allowed() {
    let allowed = [
        "sys/",
        "rocksdb/",
        "capi/src/",
        "cosched/src/mechanism/launch.rs",
        "dataplane/dpdk/",
        "dataplane/core/io/token.rs",
        "dataplane/core/ring",
        "dataplane/core/stage/fast/vector.rs",
        "dataplane/core/state/files.rs",
        "dataplane/core/state/region.rs",
        "dataplane/core/worker/",
    ];
    let offends = |path: &Path, _: usize, line: &str| {
        // The workspace denies unsafe code. An attribute over several lines has the lint on a line of its own.
        let line = line.trim_start();
        let is_attribute = ["#[allow(", "#![allow(", "#[expect(", "#![expect(", "unsafe_code"];
        let opted_in = line.contains("unsafe_code")
            && is_attribute.iter().any(|start| line.starts_with(start));
        opted_in && !allowed.iter().any(|place| path.starts_with(place))
    };
    let mut found = offences(".rs", offends);
    // Integration tests contain a counting allocator, and a socket option that the standard library lacks.
    found.retain(|line| !line.starts_with("tests/"));
    assert_none(&found, "files that allow unsafe code");
}

/// Folders of the checked crates, and the prefix that replaces each folder in the names of its modules. `dataplane/`
/// holds several crates, each in a folder.
const CRATES: [(&str, &str); 9] = [
    ("dataplane/", ""),
    ("capi/src/", "capi/"),
    ("cosched/src/", "cosched/"),
    ("learner/src/", "learner/"),
    ("pktgen/src/", "pktgen/"),
    ("sim/src/", "sim/"),
    ("sys/src/", "sys/"),
    ("testbed/src/", "testbed/"),
    ("workload/src/", "workload/"),
];

/// Returns the code of each module of [`CRATES`], without comments and tests, by module. The name of a module is crate
/// and path, as in "core/stage/network".
fn modules() -> BTreeMap<String, String> {
    let mut modules = BTreeMap::new();
    for (path, text) in files(".rs") {
        let path = path.display().to_string();
        let of_crate = |(folder, name)| Some(format!("{name}{}", path.strip_prefix(folder)?));
        let Some(file) = CRATES.into_iter().find_map(of_crate) else { continue };
        let name = file.trim_end_matches(".rs");
        let name = name.trim_end_matches("/mod").trim_end_matches("/lib");
        // `assembly/roles` has only tests. `dataplane/lib.rs` and `main.rs` only re-export and call the crates below.
        let is_test = file.contains("tests") || file.starts_with("assembly/roles");
        if is_test || !file.contains('/') {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        modules.insert(name.to_owned(), lines.collect::<Vec<_>>().join("\n"));
    }
    modules
}

/// Adds each path of the `use` tree at the start of `text` to `found`, after `prefix`: `a::b` and `a::c::d` for
/// `a::{b, c::d}`. Returns the text behind the tree.
fn branches<'a>(prefix: &str, text: &'a str, found: &mut Vec<String>) -> &'a str {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let end = text.find(|c| !is_path(c)).unwrap_or(text.len());
    let path = format!("{prefix}{}", &text[..end]);
    let mut rest = &text[end..];
    if !path.ends_with("::") || !rest.starts_with('{') {
        found.push(path);
        return rest;
    }
    while rest.starts_with(['{', ',']) {
        rest = rest[1..].trim_start();
        if !rest.starts_with('}') {
            rest = branches(&path, rest, found);
            rest = &rest[rest.find([',', '}']).unwrap_or(rest.len())..]; // skips `as NAME`
        }
    }
    rest.strip_prefix('}').unwrap_or(rest)
}

/// Returns the imports at the top level of a module: the path of each imported name, by name.
fn imports(code: &str) -> BTreeMap<String, String> {
    let mut paths = Vec::new();
    for (at, start) in code.match_indices("use ") {
        let before = code[..at].rsplit('\n').next().unwrap_or_default();
        if before.is_empty() || before.starts_with("pub") {
            branches("", &code[at + start.len()..], &mut paths);
        }
    }
    let paths = paths.iter().map(|path| path.trim_end_matches("::self"));
    let name = |path: &str| path.rsplit("::").next().unwrap_or_default().to_owned();
    paths.map(|path| (name(path), path.to_owned())).collect()
}

/// Converts a Rust path in a module's code to an absolute path: crate, modules and item, as in
/// "core/stage/network/Network". Resolves `crate::`, `super::` and `self::`. Takes any other path as relative to the
/// module.
fn absolute(module: &str, path: &str) -> String {
    let names: Vec<_> = module.split('/').collect();
    // The first name is the crate. `command` is a folder of the `wedjat` crate, so its paths keep their first name.
    let crate_names = usize::from(names[0] != "command");
    let ups = path.matches("super::").count();
    let from = match path.starts_with("crate::") {
        true => &names[..crate_names],
        false => &names[..names.len().saturating_sub(ups)],
    };
    let start = ["crate::", "super::", "self::"];
    let path = start.iter().fold(path, |path, start| path.trim_start_matches(start));
    from.iter().copied().chain(path.split("::")).collect::<Vec<_>>().join("/")
}

/// Splits an absolute path into its module (the longest prefix that is a module) and the rest. `imported` has the
/// imports of all modules, by module. Returns `None` if no prefix is a module.
fn split_module<'a>(
    path: &'a str,
    imported: &BTreeMap<String, BTreeMap<String, String>>,
) -> Option<(&'a str, &'a str)> {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]).rev();
    let (module, rest) =
        { ends }.map(|end| path.split_at(end)).find(|(name, _)| imported.contains_key(*name))?;
    Some((module, rest.trim_start_matches('/')))
}

/// Returns the module that defines an item, given its absolute path. Follows re-exports: a module that only imports the
/// item is not its definer.
fn definer(item: &str, imported: &BTreeMap<String, BTreeMap<String, String>>) -> Option<String> {
    let (module, rest) = split_module(item, imported)?;
    let (name, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let source = imported[module].get(name).map(|path| absolute(module, path));
    // A path of another package resolves to the importing module, because `absolute` takes it as relative.
    let is_elsewhere =
        |source: &String| split_module(source, imported).is_some_and(|(other, _)| other != module);
    match source.filter(is_elsewhere) {
        Some(source) => definer(&format!("{source}/{rest}"), imported),
        None => Some(module.to_owned()),
    }
}

/// Returns the modules that define the items of the `crate::` and `super::` paths in a module's code. Leaves out the
/// module itself and its submodules.
fn uses(
    name: &str,
    code: &str,
    imported: &BTreeMap<String, BTreeMap<String, String>>,
) -> BTreeSet<String> {
    let mut paths = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            if !code[..at].ends_with([':', '_']) {
                branches("", &code[at..], &mut paths);
            }
        }
    }
    let others = paths.iter().filter_map(|path| definer(&absolute(name, path), imported));
    others.filter(|used| used != name && !used.starts_with(&format!("{name}/"))).collect()
}

// promise: sources.1
#[test]
fn files_of_a_crate_form_no_circles() {
    let modules = modules();
    assert!(modules.len() > 400, "{}", modules.len());
    let imported = modules.iter().map(|(name, code)| (name.clone(), imports(code))).collect();
    let mut used: BTreeMap<_, _> =
        modules.iter().map(|(name, code)| (name.clone(), uses(name, code, &imported))).collect();
    // A module that uses no remaining module is in no cycle. Removes such modules until none is left to remove.
    loop {
        let left: BTreeSet<_> = used.keys().cloned().collect();
        used.retain(|_, others| {
            others.retain(|other| left.contains(other));
            !others.is_empty()
        });
        if left.len() == used.len() {
            break;
        }
    }
    assert!(used.is_empty(), "circles between files, or users of such: {used:#?}");
}

/// Returns name and version of each package that a build of `package` with these arguments of cargo links: normal
/// dependencies, and `package` itself.
fn versions(package: &str, arguments: &[&str]) -> BTreeSet<(String, String)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root())
        .args(["tree", "--locked", "--offline", "--prefix", "none", "--edges", "normal"])
        .args(["--package", package])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let name_and_version = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        Some((words.next()?, words.next()?))
    };
    text.lines().filter_map(name_and_version).collect()
}

/// Returns the names of the packages of [`versions`].
fn packages(package: &str, arguments: &[&str]) -> BTreeSet<String> {
    versions(package, arguments).into_iter().map(|(name, _)| name).collect()
}

// promise: library.3
#[test]
fn control_crates_stay_out_of_the_library() {
    let control = ["tonic", "prost", "redb", "tokio", "rustls", "hyper"];
    let all = packages("wedjat", &[]);
    assert!(control.iter().all(|name| all.contains(*name)), "{all:?}");
    for (package, arguments) in [("wedjat-capi", &[][..]), ("wedjat", &["--no-default-features"])] {
        let found = packages(package, arguments);
        assert!(found.contains("wedjat") && found.contains("serde"), "{found:?}");
        let foreign: Vec<_> = control.iter().filter(|name| found.contains(**name)).collect();
        assert!(foreign.is_empty(), "{package} has {foreign:?}");
    }
}

// promise: library.3
#[test]
fn embedders_get_no_frontend_and_few_crates() {
    let front_ends = ["clap", "env_logger", "indicatif", "pcap-file", "signal-hook"];
    for (package, arguments, max) in
        [("wedjat", &["--no-default-features"][..], 35), ("wedjat-capi", &[], 43)]
    {
        let names = packages(package, arguments);
        let foreign: Vec<_> = front_ends.iter().filter(|name| names.contains(**name)).collect();
        assert!(foreign.is_empty(), "{package} has {foreign:?}");
        let mut found = versions(package, arguments);
        found.retain(|(name, _)| !name.starts_with("wedjat"));
        assert!(found.len() <= max, "{package} has {} crates: {found:?}", found.len());
    }
}

/// Returns the texts between backquotes in a document, outside fenced blocks. Every second part of a split by a mark
/// lies between two marks.
fn quoted(text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2).collect::<String>();
    prose.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Checks a quote of the form `a/b.rs` or `a/b.rs::name`. Returns a fault if the file or the function in it does not
/// exist, and `None` for a quote of another form. Looks below the root, `dataplane/` and `dataplane/core/`.
fn missing(quote: &str) -> Option<String> {
    let (path, item) =
        quote.split_once("::").map_or((quote, None), |(path, item)| (path, Some(item)));
    let is_path = path.contains('/')
        && !path.starts_with('/')
        && [".rs", ".toml", ".sh", ".py", ".md"].iter().any(|ending| path.ends_with(ending))
        && !path.contains(char::is_whitespace);
    if !is_path {
        return None;
    }
    let within = ["", "dataplane/", "dataplane/core/"].map(|folder| root().join(folder).join(path));
    let Some(text) = within.iter().find_map(|path| fs::read_to_string(path).ok()) else {
        return Some(format!("`{quote}`: no such file"));
    };
    let item = item?;
    (!text.contains(&format!("fn {item}("))).then(|| format!("`{quote}`: no such function there"))
}

// promise: sources.1
#[test]
fn documents_name_files_and_tests_that_exist() {
    let documents = files(".md");
    assert!(documents.iter().any(|(path, _)| path == Path::new("SPECIFICATION.md")));
    let mut found = Vec::new();
    for (path, text) in &documents {
        let quotes = quoted(text);
        let is_function = |name: &&str| name.contains('_') && !name.contains(':');
        let named = quotes.iter().filter_map(|quote| quote.strip_prefix("::"));
        // `::name` is a function of a file that the document names elsewhere.
        let files = quotes.iter().filter_map(|quote| quote.split_once(".rs"));
        let files: BTreeSet<_> = files.map(|(file, _)| format!("{file}.rs")).collect();
        for name in named.filter(is_function) {
            let is_there = |file: &String| missing(&format!("{file}::{name}")).is_none();
            if !files.iter().any(is_there) {
                found.push(format!("{}: `::{name}`: no such function", path.display()));
            }
        }
        let faults = quotes.iter().filter_map(|quote| missing(quote));
        found.extend(faults.map(|fault| format!("{}: {fault}", path.display())));
    }
    assert_none(&found, "names of files and functions that do not exist");
}

/// Returns the anchors of a document's headings, as GitHub and mdBook make them: lower case, without punctuation,
/// hyphens for spaces, and a number behind a repeated heading.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose = text.split("```").step_by(2).collect::<String>();
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let mut found = BTreeSet::new();
    for heading in headings.map(|line| line.trim_start_matches('#').trim().to_lowercase()) {
        let is_kept = |&letter: &char| letter.is_alphanumeric() || " -_".contains(letter);
        let anchor = heading.chars().filter(is_kept).collect::<String>().replace(' ', "-");
        let more = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = std::iter::once(anchor.clone()).chain(more);
        let free = names.find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

/// Returns the targets of a document's links, without URLs: files, headings (`#anchor`), or both.
fn links(text: &str) -> Vec<&str> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let named = text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    let all = inline.chain(named.map(|(_, target)| target));
    all.filter(|link| !link.contains("://")).collect()
}

// promise: sources.1
#[test]
fn links_between_documents_lead_somewhere() {
    let (mut found, mut with_anchor) = (Vec::new(), 0);
    for (path, text) in files(".md") {
        let folder = root().join(&path).parent().unwrap().to_owned();
        for link in links(&text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { root().join(&path) } else { folder.join(file) };
            let leads = target.exists()
                && (anchor.is_empty()
                    || anchors(&fs::read_to_string(target).unwrap_or_default()).contains(anchor));
            with_anchor += usize::from(!anchor.is_empty());
            if !leads {
                found.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(with_anchor > 10, "{with_anchor} links name a heading");
    assert_none(&found, "links to nowhere");
}

// promise: sources.1
#[test]
fn summary_lists_every_page() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let listed: Vec<_> =
        links(&summary).iter().map(|link| root().join("docs").join(link)).collect();
    let listed: BTreeSet<_> = listed.iter().map(|path| path.canonicalize().unwrap()).collect();
    let of_users = |path: &Path| {
        path.starts_with("docs") || path.parent() == Some(Path::new("")) // e.g. README.md at the root
    };
    let silent: Vec<_> = files(".md")
        .into_iter()
        .filter(|(path, _)| of_users(path) && !path.ends_with("SUMMARY.md"))
        .filter(|(path, _)| !listed.contains(&root().join(path).canonicalize().unwrap()))
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert_none(&silent, "pages that docs/SUMMARY.md does not list");
}

/// Runs scripts/book.sh, which writes the book into `out`, with this search path for programs.
fn book(out: &Path, path: &OsStr) -> Output {
    let mut command = Command::new(root().join("scripts/book.sh"));
    command.arg(out).env("PATH", path).output().unwrap()
}

// promise: sources.1
#[test]
fn book_has_every_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let folders = std::env::split_paths(&path).filter(|place| !place.join("mdbook").exists());
    let path_without_mdbook = std::env::join_paths(folders).unwrap();
    let refused = book(folder.path(), &path_without_mdbook);
    let reason = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && reason.contains("cargo install mdbook"), "{reason}");
    if path_without_mdbook == path {
        let _ =
            writeln!(std::io::stderr(), "SKIPPED: the book needs mdbook (cargo install mdbook)");
        return;
    }
    let built = book(folder.path(), &path);
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let mut broken = Vec::new();
    for link in links(&summary) {
        let page = folder.path().join("docs").join(link).with_extension("html");
        let html = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{link}: {error}"));
        let content = html.split("<main>").nth(1).unwrap_or_default();
        for target in content.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let leads = file.is_empty() || page.parent().unwrap().join(file).exists();
            if !target.contains("://") && !leads {
                broken.push(format!("{link}: {target}"));
            }
        }
    }
    assert_none(&broken, "links of the book to nowhere");
}

// promise: sources.1
#[test]
fn documents_name_targets_that_the_makefile_has() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: BTreeSet<_> = makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', '#', '.']) && !line.contains(":="))
        .filter_map(|line| line.split_once(':'))
        .flat_map(|(names, _)| names.split_whitespace())
        .collect();
    assert!(targets.contains("demo") && targets.contains("test"), "{targets:?}");
    let mut found = Vec::new();
    for (path, text) in files(".md") {
        for quote in quoted(&text) {
            let Some(target) = quote.strip_prefix("make ") else { continue };
            if !target.split_whitespace().next().is_some_and(|name| targets.contains(name)) {
                found.push(format!("{}: `{quote}`", path.display()));
            }
        }
    }
    assert_none(&found, "make targets that do not exist");
}

// promise: control.2
#[test]
fn documented_counters_and_drop_reasons_match_the_code() {
    let metrics = METRICS
        .iter()
        .filter(|metric| DropReason::ALL.iter().all(|reason| reason.name() != metric.name));
    let of_core = |family: &Family| METRICS.iter().any(|metric| metric.help == family.help);
    let (cores, others): (Vec<_>, Vec<_>) = families().into_iter().partition(of_core);
    let rows = metrics.map(|Metric { name, unit, help, .. }| {
        let family = cores.iter().find(|family| family.help == *help).unwrap();
        format!("| `{name}` | `{}` | {unit} | {help} |\n", family.sample())
    });
    assert_table(
        "docs/reference/counters.md",
        "",
        "| name | metric | unit | what it tells |",
        rows,
    );
    let rows = others.into_iter().map(|family| {
        let (kind, unit) = (family.kind.name(), family.unit);
        format!(
            "| `{}` | {kind} | {unit} | {} | {} |\n",
            family.sample(),
            family.labels,
            family.help
        )
    });
    assert_table(
        "docs/reference/grpc.md",
        "",
        "| metric | kind | unit | labels | what it tells |",
        rows,
    );
    let rows = DropReason::ALL.iter().map(|reason| {
        format!("| `{}` | {} | {} |\n", reason.name(), reason.help(), reason.look_at())
    });
    assert_table("docs/reference/drop-reasons.md", "", "| reason | the packet | look at |", rows);
    assert_table_of_json_keys();
}

/// Maximum sizes in bytes of the documents that people read from start to end.
const DOCUMENTS_MAX: [(&str, usize); 2] =
    [("SPECIFICATION.md", 12 * 1024), ("ARCHITECTURE.md", 14 * 1024)];

#[test]
fn documents_stay_within_their_sizes() {
    for (name, max) in DOCUMENTS_MAX {
        let len = fs::read(root().join(name)).unwrap().len();
        assert!(len <= max, "{name} has {len} bytes, but must have at most {max}: shorten it");
    }
}

// promise: sources.1
#[test]
fn documented_promises_are_shown_by_tests() {
    let specification = fs::read_to_string(root().join("SPECIFICATION.md")).unwrap();
    let promises = promises::promises(&specification);
    let ids: BTreeSet<_> = promises.iter().map(|promise| promise.id.as_str()).collect();
    assert!(ids.len() >= 40 && ids.len() == promises.len(), "every promise has its id: {ids:?}");

    // `shown`: names of tests, by promise and file. `faults`: marks without a test or without a promise.
    let (mut shown, mut faults) = (BTreeMap::<_, BTreeMap<_, Vec<_>>>::new(), Vec::new());
    for (path, text) in files(".rs") {
        let path = path.display().to_string();
        let tests = promises::marked_tests(&text).unwrap_or_else(|mark| {
            faults.push(format!("{path}: {mark}: no test below"));
            Vec::new()
        });
        for (id, name) in
            tests.iter().flat_map(|test| test.ids.iter().map(move |id| (id, &test.name)))
        {
            if !ids.contains(id.as_str()) {
                faults.push(format!("{path}: {name}: the specification has no promise {id}"));
            }
            let files = shown.entry(id.clone()).or_default();
            files.entry(path.clone()).or_default().push(name.clone());
        }
    }
    let is_shown = |promise: &promises::Promise| {
        shown.contains_key(&promise.id) || promise.text.contains("`make ")
    };
    let unshown = promises.iter().filter(|promise| !is_shown(promise));
    faults.extend(unshown.map(|promise| format!("{}: neither test nor `make`", promise.id)));
    assert_none(&faults, "promises and the marks of their tests");

    let rows = promises.iter().map(|promise| {
        let files = shown.remove(&promise.id).unwrap_or_default();
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
        let count = files.iter().map(|(_, names)| names.len()).sum::<usize>();
        // The example is a test of the file with the most tests. The name `main` of a test program says nothing.
        let mut names = files.iter().flat_map(|(_, names)| names.first());
        let name = names.find(|name| *name != "main").map(|name| format!("`{name}`"));
        format!("| {} | {count} | {} |\n", promise.id, name.unwrap_or_default())
    });
    let head = "| promise | tests | such as |";
    assert_table("docs/reference/promises.md", "", head, rows);
}

/// Returns names and comments of the public fields of a struct in a source file, except skipped and flattened ones.
/// The names are the JSON keys, unless serde renames them.
fn fields(path: &str, name: &str) -> Vec<(String, String)> {
    let source = fs::read_to_string(root().join(path)).unwrap();
    let start =
        source.find(&format!("pub struct {name} {{")).unwrap_or_else(|| panic!("{name} of {path}"));
    let body = &source[start..start + source[start..].find("\n}").unwrap()];
    let (mut found, mut comment, mut is_left_out) = (Vec::new(), String::new(), false);
    for line in body.lines().skip(1).map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment += text;
        } else if line.starts_with("#[serde(skip)]") || line.starts_with("#[serde(flatten)]") {
            is_left_out = true;
        } else if let Some((field, _)) =
            line.strip_prefix("pub ").and_then(|line| line.split_once(':'))
        {
            let text = std::mem::take(&mut comment).trim().replace('|', "or");
            if !std::mem::take(&mut is_left_out) {
                found.push((field.to_owned(), text));
            }
        }
    }
    found
}

/// Structs whose fields are keys of JSON reports: place in the reports, source file, and name. The keys of counters
/// and drop reasons have tables of their own.
const REPORTED: [(&str, &str, &str); 17] = [
    ("account", "dataplane/core/stats.rs", "LeafStats"),
    ("account, `ports[]`", "dataplane/core/stats.rs", "PortStats"),
    ("account, `manifest`", "dataplane/core/stats.rs", "Manifest"),
    ("an agent's account, besides", "dataplane/core/stats.rs", "AgentStats"),
    ("an agent's account, `attach`", "dataplane/core/role/agent/worker_set.rs", "AttachStats"),
    ("state", "dataplane/core/state/table.rs", "Snapshot"),
    ("state, `pools[]`", "dataplane/core/state/table.rs", "PoolSnapshot"),
    ("state, `pools[].auto`", "dataplane/core/state/table.rs", "AutoSnapshot"),
    ("state, `pools[].members[]`", "dataplane/core/state/table.rs", "MemberSnapshot"),
    ("state, `cores[]`", "dataplane/core/state/table.rs", "CoreSnapshot"),
    ("state, histograms", "dataplane/core/state/histogram.rs", "HistogramSnapshot"),
    ("state, `neighbours[]`", "dataplane/core/state/table.rs", "NeighbourSnapshot"),
    ("state, `peers`", "dataplane/core/state/nodes.rs", "PeersSnapshot"),
    ("state, `peers.nodes[]`", "dataplane/core/state/nodes.rs", "PeerSnapshot"),
    ("status", "dataplane/admin/status.rs", "Status"),
    ("status, `members[][]`", "dataplane/admin/status.rs", "MemberStatus"),
    ("status, `controller`", "dataplane/admin/follow.rs", "ControllerLink"),
];

/// Compares the table of JSON keys in docs/reference/counters.md with the fields of [`REPORTED`].
fn assert_table_of_json_keys() {
    let rows = REPORTED.iter().flat_map(|(place, path, name)| {
        let fields = fields(path, name);
        assert!(!fields.is_empty(), "{name}");
        // Only the first row of a struct shows the place.
        let places = std::iter::once(format!(" {place}")).chain(std::iter::repeat(String::new()));
        let rows = fields.into_iter().zip(places);
        rows.map(|((key, text), place)| format!("| `{key}` |{place} | {text} |\n"))
    });
    assert_table("docs/reference/counters.md", "", "| key | where | what it tells |", rows);
}

/// Adds all keys of objects anywhere in a value to `found`.
fn keys_of(value: &serde_json::Value, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) => map.iter().for_each(|(key, value)| {
            found.insert(key.clone());
            keys_of(value, found);
        }),
        serde_json::Value::Array(list) => list.iter().for_each(|value| keys_of(value, found)),
        _ => {}
    }
}

// promise: control.2
#[test]
fn every_account_and_state_key_is_documented() {
    use wedjat::state::table::{PoolSpec, Spec, Table, WorkerSpec};
    use wedjat::state::{Counters, Snapshot, Totals};
    use wedjat::stats::{AgentStats, LeafStats, Manifest, PortStats};
    let counters = Counters::heap();
    DropReason::ALL.iter().for_each(|&reason| counters.drop(reason, 1));
    let mut ledger = LeafStats::of(Totals::read(&[counters]), 1.0, Manifest::default());
    ledger.ports = vec![PortStats::default()];
    let agent = AgentStats {
        ledger: ledger.clone(),
        name: String::new(),
        attach: Default::default(),
        registered: 0,
        senders: 0,
    };
    ledger.agent = Some(Box::new(agent));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let workers = vec![WorkerSpec { id: 1, server: 0 }];
    let pools =
        vec![PoolSpec { id: 1, policy: "horus".to_owned(), objective: String::new(), workers }];
    let servers = vec![std::net::Ipv4Addr::new(10, 0, 0, 1).into()];
    let spec = Spec { cores: 1, ports: 1, servers, pools, ticks_hz: 1, ..Spec::default() };
    let table = Table::create(&path, &spec).unwrap();
    table.neighbours().set_static(
        table.neighbours().insert(0, 0x0A00_0002_u32, 0),
        wedjat::wire::ether::Mac([2; 6]),
    );
    table.publish();
    let snapshot = Snapshot::open(&path).unwrap();
    let mut keys = BTreeSet::new();
    keys_of(&serde_json::to_value(&ledger).unwrap(), &mut keys);
    keys_of(&serde_json::to_value(&snapshot).unwrap(), &mut keys);
    assert!(keys.len() > 130 && keys.contains("neighbours") && keys.contains("mac"), "{keys:?}");
    let page = fs::read_to_string(root().join("docs/reference/counters.md")).unwrap()
        + &fs::read_to_string(root().join("docs/reference/drop-reasons.md")).unwrap();
    let explained: BTreeSet<_> = quoted(&page).into_iter().collect();
    let silent: Vec<_> = keys.into_iter().filter(|key| !explained.contains(key)).collect();
    assert_none(
        &silent,
        "keys that docs/reference/counters.md does not explain, nor docs/reference/drop-reasons.md of drop reasons",
    );
}

/// Tables of configuration keys: page of docs/reference, heading above the table, and the lists of keys in the table.
const KEY_TABLES: [(&str, &str, &[&[Key]]); 17] = [
    ("configuration", "\n## `[leaf]`", &[keys::NODE, keys::COMMON, keys::LEAF]),
    ("configuration", "\n## `[[port]]`", &[keys::PORT, keys::NODE_PORT]),
    ("configuration", "\n## `[[pool]]`", &[keys::POOL, keys::LEAF_POOL]),
    ("configuration", "\n## `[[server]]`", &[keys::SERVER]),
    ("configuration", "\n## Spines of a leaf", &[keys::SPINE_ABOVE]),
    ("configuration", "\n## `[control]`", &[keys::CONTROL, keys::METRICS]),
    ("configuration", "\n## `[controller]`", &[keys::FOLLOWER]),
    ("configuration", "\n## File of a spine", &[keys::SPINE]),
    ("configuration", "\n### `[[pool]]` of a spine", &[keys::SPINE_POOL]),
    ("configuration", "\n### `[[leaf]]` of a spine", &[keys::LEAF_BELOW]),
    ("agent", "\n## `[agent]`", &[keys::HOST, keys::AGENT]),
    ("agent", "\n## `[[leaf]]`", &[keys::AGENT_LEAF]),
    ("agent", "\n## `[[pool]]`", &[keys::AGENT_POOL, keys::REMOTE_POOL]),
    ("agent", "\n## `[peers]`", &[keys::PEERS]),
    ("agent", "\n## `[cosched]`", &[keys::COSCHED]),
    ("agent", "\n### `[[cosched.job]]`", &[keys::JOB]),
    ("controller", "\n## Configuration of a controller", &[keys::CONTROLLER]),
];

// promise: control.2
#[test]
fn documented_keys_match_the_code() {
    for (page, heading, parts) in KEY_TABLES {
        let rows = parts.iter().flat_map(|part| part.iter()).map(|key| {
            let (Key { name, meaning, .. }, values, default) = (key, key.values(), key.default());
            format!("| `{name}` | {values} | {default} | {meaning} |\n")
        });
        let document = format!("docs/reference/{page}.md");
        assert_table(&document, heading, "| key | type | default | meaning |", rows);
    }
    let is_shown = |part: &[Key]| KEY_TABLES.iter().any(|(_, _, parts)| parts.contains(&part));
    let sections =
        keys::SECTIONS.iter().filter(|section| !section.parts.iter().all(|part| is_shown(part)));
    let silent: Vec<_> = sections.map(keys::Section::header).collect();
    assert_none(&silent, "sections with keys that no page of docs/reference has");
}

/// Sample keys of the configuration. Each has one use, and a name that no other code contains. Second: the file of
/// dataplane/desired/config with the validated field.
const SINGLE_USE_KEYS: [(&str, &str); 2] =
    [("connection_timeout_ms", "leaf.rs"), ("lease_s", "controller.rs")];

/// Returns the files of the dataplane whose code names a configuration key.
fn files_of_key(key: &str) -> Vec<String> {
    let is_test = |path: &Path, line: &str| {
        let parts = ["tests.rs", "tests", "roles", "reason.rs"]; // reason.rs names keys in its texts
        let is_text = line.contains("\\n") || line.trim_start().starts_with("//");
        is_text || path.iter().any(|part| parts.iter().any(|one| part == *one))
    };
    let mut found: Vec<_> = files(".rs").into_iter().collect();
    found.retain(|(path, text)| {
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let is_use = |line: &str| {
            let mut words =
                line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            words.any(|word| word == key) && !is_test(path, line)
        };
        path.starts_with("dataplane") && code.lines().any(is_use)
    });
    found.iter().map(|(path, _)| path.display().to_string()).collect()
}

/// A new key of the configuration must change few files. Its name occurs in the table of keys, in the validated
/// configuration, and at its use.
#[test]
fn a_key_costs_three_files() {
    for (key, field) in SINGLE_USE_KEYS {
        let paths = files_of_key(key);
        let desired = ["keys.rs", field].map(|file| format!("dataplane/desired/config/{file}"));
        assert_eq!(paths.len(), 3, "{key} is in {paths:?}");
        assert!(desired.iter().all(|path| paths.contains(path)), "{key} is in {paths:?}");
    }
}

/// Sample properties that can change at run time: variant of `Change`, and its verb in text.
const LIVE_CHANGES: [[&str; 2]; 1] = [["SetSpeed", "set-speed"]];

/// Returns the files of the dataplane whose code names a property that can change at run time.
fn files_of_change(names: [&str; 2]) -> Vec<String> {
    let is_tests = |path: &Path| {
        let names = ["tests.rs", "tests", "roles", "generated.rs"];
        path.iter().any(|part| names.iter().any(|name| part == *name))
    };
    let mut found: Vec<_> = files(".rs").into_iter().collect();
    found.retain(|(path, text)| {
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let is_named = names.iter().any(|name| code.contains(name));
        path.starts_with("dataplane") && !is_tests(path) && is_named
    });
    found.iter().map(|(path, _)| path.display().to_string()).collect()
}

/// A new property that can change at run time must change few files, too.
#[test]
fn a_live_property_costs_five_files() {
    for names in LIVE_CHANGES {
        let paths = files_of_change(names);
        assert!(paths.len() <= 5, "{names:?} is in {paths:?}");
    }
}

/// Prefixes of the paths of the crates' code, for the count of conditions on cargo features.
const VARIANTS: [&str; 9] = [
    "dataplane/",
    "testbed/src/",
    "pktgen/src/",
    "capi/src/",
    "learner/",
    "cosched/",
    "sim/",
    "sys/",
    "workload/",
];

/// Returns the lines with a condition on a cargo feature.
fn lines_of_features() -> Vec<String> {
    let code = files(".rs").into_iter();
    let code = code.filter(|(path, _)| VARIANTS.iter().any(|start| path.starts_with(start)));
    code.flat_map(|(path, text)| {
        let lines = text.lines().filter(|line| line.contains("cfg") && line.contains("feature"));
        lines.map(|line| format!("{}: {}", path.display(), line.trim())).collect::<Vec<_>>()
    })
    .collect()
}

/// Limits the lines with a condition on a cargo feature, because each variant of the code needs tests of its own.
#[test]
fn few_lines_depend_on_a_feature() {
    let lines = lines_of_features();
    assert!(lines.len() < 20, "{lines:#?}");
}

/// Types of the dataplane with "Pool" in their names for other concepts: pools of packet buffers, and the command line.
const OTHER_POOLS: [&str; 6] =
    ["MbufPool", "PoolError", "PoolHandle", "FramePool", "PoolArguments", "PoolCommand"];
/// Maximum number of lines of code in all crates.
const LINES_MAX: usize = 112_000;

/// Prints the counts of the design, and limits them: the files that a change touches, the types for a concept, the
/// algorithms for one purpose, and the lines of code.
#[test]
fn counts_of_the_design_stay_low() {
    let mut lines = BTreeMap::<_, usize>::new();
    let (mut pools, mut differences, mut parsers) = (Vec::new(), Vec::new(), Vec::new());
    for (path, text) in files(".rs") {
        let Some(name) = counts::crate_of(&path) else { continue };
        *lines.entry(name).or_default() += counts::code(&text).count();
        if !path.starts_with("dataplane") {
            continue;
        }
        let types = counts::pool_types(&text).into_iter();
        let types = types.filter(|one| !OTHER_POOLS.contains(&one.as_str()));
        pools.extend(types.map(|one| format!("{}: {one}", path.display())));
        // A comparison of two desired states or memberships is a type, `Delta` or `Differences`. A parser of commands
        // gets a table of verbs.
        let code = counts::code(&text).map(|line| format!("{}: {}", path.display(), line.trim()));
        for line in code {
            let is_type = |one: &str| line.contains(&format!("pub struct {one}"));
            if ["Delta", "Differences"].into_iter().any(is_type) {
                differences.push(line);
            } else if line.contains("fn ") && line.contains(": &Verbs") {
                parsers.push(line);
            }
        }
    }
    let total = lines.values().sum();
    let key = SINGLE_USE_KEYS.map(|(key, _)| files_of_key(key).len()).into_iter().max();
    let change = LIVE_CHANGES.map(|names| files_of_change(names).len()).into_iter().max();
    let counts = [
        ("files that name a configuration key", key.unwrap(), 3),
        ("files that name a live property", change.unwrap(), 5),
        ("types for the concept \"pool\"", pools.len(), 9),
        ("comparisons of desired states", differences.len(), 2),
        ("parsers of commands", parsers.len(), 1),
        ("lines that depend on a feature", lines_of_features().len(), 19),
        ("lines of code", total, LINES_MAX),
    ];
    println!("| count | value | maximum |\n|---|---|---|");
    counts.iter().for_each(|(name, value, max)| println!("| {name} | {value} | {max} |"));
    println!("\ntypes: {pools:#?}\nlines: {lines:#?}");
    let all = [&pools, &differences, &parsers];
    assert!(
        counts.iter().all(|(_, value, max)| value > &0 && value <= max),
        "{counts:#?} {all:#?}"
    );
    // The documented numbers are rounded, and may be out of date by a twentieth.
    let documented =
        counts::documented_lines(&fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap());
    for (name, count) in lines {
        let documented = documented[name];
        assert!(count.abs_diff(documented) * 20 <= documented, "{name}: {documented}, has {count}");
    }
}

// promise: control.2
#[test]
fn every_controller_command_is_documented() {
    let text = fs::read_to_string(root().join("docs/reference/controller.md")).unwrap();
    let source = fs::read_to_string(root().join("dataplane/fabric/command.rs")).unwrap();
    // The comment of each variant of `Command` begins with its text form.
    let verbs =
        source.lines().filter_map(|line| line.trim().strip_prefix("/// `")?.split_once(' '));
    let verbs: Vec<_> = verbs.map(|(verb, _)| verb).collect();
    assert!(verbs.len() > 15, "commands are found: {verbs:?}");
    let silent = verbs.into_iter().filter(|verb| !text.contains(verb)).map(str::to_owned);
    assert_none(
        &silent.collect::<Vec<_>>(),
        "commands that docs/reference/controller.md does not explain",
    );
}

/// Error texts of the operating system that messages contain. They need not occur in the sources.
const SYSTEM_ERRORS: [&str; 3] =
    ["Permission denied", "Operation not permitted", "No space left on device"];

// promise: control.2
#[test]
fn troubleshooting_names_messages_of_the_code() {
    let page = fs::read_to_string(root().join("docs/howto/troubleshoot.md")).unwrap();
    let is_test = |path: &Path| path.components().any(|part| part.as_os_str() == "tests");
    let sources = files(".rs").into_iter().filter(|(path, _)| !is_test(path));
    // Joins strings that continue on the next line after a backslash.
    let code: String = sources
        .flat_map(|(_, text)| {
            text.split("\\\n").map(|part| part.trim_start().to_owned()).collect::<Vec<_>>()
        })
        .collect();
    let tables = page.split("\n| message contains | fix |\n").skip(1);
    let rows = tables.flat_map(|table| table.lines().take_while(|line| !line.is_empty()));
    let messages: Vec<_> = rows.filter_map(|row| row.split('|').nth(1)).flat_map(quoted).collect();
    assert!(messages.len() > 15, "messages are found: {messages:?}");
    let is_known = |part: &str| SYSTEM_ERRORS.contains(&part) || code.contains(part);
    let is_foreign = |message: &&String| !message.split("...").all(|part| is_known(part.trim()));
    let foreign: Vec<_> = messages.iter().filter(is_foreign).cloned().collect();
    assert_none(&foreign, "messages of docs/howto/troubleshoot.md that no program prints");
}

// promise: control.2
#[test]
fn every_expert_file_key_is_documented() {
    // The expert file has a key for each field of the structs of the chooser (`Settings`) and of the guard.
    let text = fs::read_to_string(root().join("docs/howto/run-batch-jobs.md")).unwrap();
    let mut keys = Vec::new();
    for (file, type_name) in [("settings", "Settings"), ("guard", "GuardSettings")] {
        let source = fs::read_to_string(root().join(format!("cosched/src/{file}.rs"))).unwrap();
        let (_, fields) = source.split_once(&format!("pub struct {type_name} {{")).unwrap();
        let (fields, _) = fields.split_once("\n}").unwrap();
        let names =
            fields.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'));
        keys.extend(names.map(|(name, _)| name.replace('_', "-")));
    }
    assert!(keys.len() > 15, "the keys are found: {keys:?}");
    keys.retain(|key| !text.contains(&format!("\n{key} = ")));
    assert_none(&keys, "keys that docs/howto/run-batch-jobs.md does not explain");
}

// promise: control.2
#[test]
fn dashboard_shows_existing_metrics() {
    let text = fs::read_to_string(root().join("examples/grafana.json")).unwrap();
    let board: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(board["panels"].as_array().unwrap().len() > 5);
    let named = assert_metrics_exist(&text);
    assert!(named.len() > 8, "{named:?}");
    for histogram in families().iter().filter(|family| family.kind == CounterKind::Histogram) {
        let bucket = format!("{}_bucket", histogram.name);
        assert!(named.contains(&bucket), "the dashboard does not show {bucket}");
    }
}

/// Returns the names of metrics (`wedjat_...`) in a text. Panics if a node does not export one of them.
fn assert_metrics_exist(text: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let named = text.match_indices("wedjat_").map(|(at, _)| {
        let end = text[at..].find(|letter| !is_name(letter)).unwrap_or(text.len() - at);
        text[at..at + end].to_owned()
    });
    let named: BTreeSet<_> = named.collect();
    let samples: BTreeSet<_> =
        families().iter().flat_map(wedjat::admin::metrics::Family::samples).collect();
    let foreign: Vec<_> = named.difference(&samples).collect();
    assert!(foreign.is_empty(), "{foreign:?} of {named:?}");
    named
}

// promise: control.5
#[test]
fn alert_rules_name_existing_metrics_and_pages() {
    let text = fs::read_to_string(root().join("examples/alerts.yaml")).unwrap();
    let tests = fs::read_to_string(root().join("tests/alerts/rules_test.yaml")).unwrap();
    let page = fs::read_to_string(root().join("docs/howto/monitor.md")).unwrap();
    let (rules, in_tests) = (assert_metrics_exist(&text), assert_metrics_exist(&tests));
    assert_eq!(rules, in_tests, "metrics of the rules, and of the series that test them");
    let alerts: Vec<_> = text.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 10, "{text}");
    for alert in alerts {
        let (name, _) = alert.split_once('\n').unwrap();
        assert!(alert.contains("\n          summary: "), "{name}");
        let (_, description) = alert.split_once("\n          description: ").unwrap();
        let (_, path) = description.split_once("See docs/").unwrap();
        let (path, _) = path.split_once(".md").unwrap();
        assert!(root().join(format!("docs/{path}.md")).is_file(), "{name}: {path}");
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name} never fires in the test");
        assert!(page.contains(&format!("| `{name}` |")), "docs/howto/monitor.md lacks {name}");
    }
}

// promise: control.5
#[test]
fn promtool_accepts_the_alert_rules() {
    for (what, file) in
        [("check", "examples/alerts.yaml"), ("test", "tests/alerts/rules_test.yaml")]
    {
        let tool =
            Command::new("promtool").args([what, "rules", file]).current_dir(root()).output();
        let Ok(output) = tool else {
            let _ =
                writeln!(std::io::stderr(), "SKIPPED: there is no promtool (Debian: prometheus)");
            return;
        };
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && text.contains("SUCCESS"), "{file}: {text}");
    }
}

// promise: sources.1
#[test]
fn the_examples_are_right_configurations() {
    let path = root().join("examples/leaf.toml");
    let config = wedjat::config::Config::load(&path).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.servers.iter().map(|server| server.workers.len()).sum::<usize>(), 32);
    // Sum of the servers' speeds, by default 1 each. A spine's servers are its leaves. The speed of a leaf is its
    // number of workers.
    let racks = [("examples/spine.toml", 48.0), ("examples/rack.toml", 2.0)];
    for (file, speeds) in racks.into_iter().chain([("examples/agent-leaf.toml", 1.0)]) {
        let path = root().join(file);
        let config = wedjat::config::Config::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.servers.iter().map(|server| server.speed).sum::<f64>(), speeds, "{file}");
    }
    let path = root().join("examples/nic.toml");
    let config = wedjat::config::Config::load(&path).unwrap_or_else(|error| panic!("{error}"));
    assert!(
        config.warnings().is_empty(),
        "{:?}",
        config.warnings().iter().map(ToString::to_string).collect::<Vec<_>>()
    );
}
