//! Runs the shell commands of a document (page) and compares their outputs with those that the page shows. [`run`] is
//! the entry. The commands run in a sandbox with its own processes, network, /dev/shm, /run and /var/lib, and with its
//! own copy of /etc if the page names /etc/wedjat.
//!
//! HTML comments above a fenced block say how it runs; readers of the page do not see them. A comment that stands alone
//! needs no block:
//!
//! | comment | effect |
//! |---|---|
//! | `not run: REASON` | the block is skipped and counted |
//! | `terminal NAME` or `terminal NAME until CONDITION` | the block runs in the background |
//! | `stop NAME` or `stop NAME until CONDITION` | stands alone: Ctrl-C in that terminal, then waits for its end |
//! | `wait NAME` | stands alone: waits until that terminal ends by itself |
//! | `may exit 1` | exit status 1 is no failure, for measurements on a busy machine |
//! | `file NAME` | the block is written to this file, in any language |
//! | `numbers vary` | for a `text` block: each of its numbers stands for any number |
//! | `output of NAME` | for a `text` block: it is the output of that terminal |
//! | `not output` | for a `text` block: it is no output |
//!
//! With `until`, the page goes on when the condition, a shell command, succeeds. Blocks of the language `sh` run. A
//! `text` block after one that ran shows its output: each line must occur in the output, in order. `...` stands for
//! any text. Blocks of other languages have no effect without `file`.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Time limit of a page, which only failing pages reach.
const PAGE_MAX: &str = "600s";

/// Exit status with which a page's `setup` skips the page.
const SKIP: i32 = 77;

/// A document with the circumstances that its commands need.
#[derive(Clone, Copy, Default)]
pub struct Page<'a> {
    /// Path in the project.
    pub path: &'a str,
    /// Shell commands that run before those of the page. `{page PATH N}` stands for the N-th block of another page.
    /// They print a reason and exit with status 77 to skip the page, where the machine lacks something.
    pub setup: &'a [&'a str],
    /// Replacements in the commands, each from a text to another, for example of long durations. Each text must occur.
    pub replace: &'a [(&'a str, &'a str)],
    /// Programs without which the page is skipped.
    pub needs: &'a [&'a str],
    /// Further variables of the environment.
    pub env: &'a [(&'a str, &'a str)],
}

/// A fenced block with the comments above it.
#[derive(Debug)]
struct Block {
    /// Word behind the opening fence, such as `sh` or `text`.
    language: String,
    /// Lines between the fences.
    text: String,
    /// Texts of the HTML comments above the block.
    notes: Vec<String>,
    /// Line number of the opening fence, or of the comment that stands alone.
    line: usize,
}

/// Lines of a page that are compared with an output.
struct ShownOutput {
    /// Name of the file with the output of a block or terminal.
    file: String,
    /// Lines that the output must contain, in order.
    text: String,
    /// True if each number stands for any number.
    numbers_vary: bool,
    /// Line number of the `text` block in the page.
    line: usize,
}

/// Blocks of shell commands of a page: their number, and those marked as `not run`.
#[derive(Default)]
pub struct Marked {
    /// Number of blocks.
    pub blocks: usize,
    /// Place (`path:line`) and reason of each block marked as `not run`.
    pub skipped: Vec<String>,
}

/// Returns the project's folder: the folder of the test's crate, or one above it.
pub fn root() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("docs/SUMMARY.md").exists()).unwrap()
}

/// Splits a page into its fenced blocks. A `stop` or `wait` comment becomes a block without language and text.
fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut notes) = (Vec::new(), Vec::new());
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let text = line.trim_start();
        let note = text.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
        let stands_alone = |note: &&str| note.starts_with("stop ") || note.starts_with("wait ");
        if let Some(note) = note.filter(stands_alone) {
            let (language, notes) = (String::new(), vec![note.to_owned()]);
            blocks.push(Block { language, text: String::new(), notes, line: at + 1 });
        } else if let Some(note) = note {
            notes.push(note.to_owned());
        } else if let Some(language) = text.strip_prefix("```") {
            let indent = line.len() - text.len();
            let inside = lines.by_ref().map(|(_, line)| line);
            let inside = inside.take_while(|line| line.trim_start() != "```");
            let text = inside.fold(String::new(), |text, line| {
                text + line.get(indent..).unwrap_or_default() + "\n"
            });
            let (language, notes) = (language.to_owned(), std::mem::take(&mut notes));
            blocks.push(Block { language, text, notes, line: at + 1 });
        } else if !text.is_empty() {
            assert!(notes.is_empty(), "line {}: a comment that is above no block", at + 1);
        }
    }
    blocks
}

impl Block {
    /// Returns the rest of the first comment that begins with `key`; `None` without such a comment.
    fn note(&self, key: &str) -> Option<&str> {
        self.notes.iter().find_map(|note| note.strip_prefix(key)).map(str::trim)
    }

    /// Checks that all comments are known ones.
    fn check_notes(&self, path: &str) {
        let keys = ["not run: ", "terminal ", "stop ", "wait ", "may exit 1", "file "];
        let keys = keys.iter().chain(&["numbers vary", "output of ", "not output"]);
        for note in &self.notes {
            let is_known = keys.clone().any(|key| note.starts_with(key));
            assert!(is_known, "{path}:{}: unknown comment {note:?}", self.line);
        }
    }
}

/// Reads a file of the project.
fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Reads a page and returns its blocks of shell commands, counted.
pub fn marked(path: &str) -> Marked {
    let mut marked = Marked::default();
    for block in blocks(&read(path)).iter().filter(|block| block.language == "sh") {
        marked.blocks += 1;
        let reason = block.note("not run:");
        marked.skipped.extend(reason.map(|reason| format!("{path}:{}: {reason}", block.line)));
    }
    marked
}

/// Splits `NAME until CONDITION` into the name and the condition, which may be absent.
fn condition(note: &str) -> (&str, Option<&str>) {
    note.split_once(" until ").map_or((note, None), |(name, condition)| (name, Some(condition)))
}

/// Returns commands that wait for a condition. They end the script, which runs with `set -e`, if the command `alive`
/// fails before. Returns an empty text without a condition.
fn until(condition: Option<&str>, alive: &str) -> String {
    let Some(condition) = condition else { return String::new() };
    format!("until {{ {condition}; }} >/dev/null 2>&1; do {alive}; sleep 0.1; done\n")
}

/// Returns the shell script of a page, and the outputs that it must have. Writes the page's files to `folder`, in which
/// the script will run. The script keeps its own files in the folder above: `setup`, `step` (the line that ran last),
/// `block-N` and `terminal-NAME` (outputs).
fn script(page: &Page, setup: &str, blocks: &[Block], folder: &Path) -> (String, Vec<ShownOutput>) {
    // `-m`: each terminal has its own process group, to which `kill -- -PID` sends a signal.
    let mut script = String::from("set -eum\nip link set lo up\n");
    for place in ["/dev/shm", "/run", "/var/lib"] {
        writeln!(script, "mount -t tmpfs tmpfs {place}").unwrap();
    }
    // Shows the interfaces of the sandbox's network.
    script += "mount -t sysfs sysfs /sys\n";
    let text: String = blocks.iter().map(|block| block.text.as_str()).collect();
    if text.contains("/etc/wedjat") {
        script += "cp -a /etc ../etc; mkdir -p ../etc/wedjat; mount --bind ../etc /etc\n";
    }
    // bash rejects a group without commands, so `true` stands for an empty setup.
    writeln!(script, "{{ true\n{setup}\n}} >../setup 2>&1").unwrap();
    // `last` is the output file of the last `sh` block, if that ran and no `text` block has used it yet.
    let (mut expected, mut terminals, mut last) = (Vec::new(), Vec::new(), None);
    for (at, block) in blocks.iter().enumerate() {
        block.check_notes(page.path);
        let line = block.line;
        // A failure names the line of the block that ran last.
        writeln!(script, "echo {line} >../step").unwrap();
        let (stop, wait) = (block.note("stop "), block.note("wait "));
        if let Some((name, condition)) = stop.or(wait).map(condition) {
            assert!(terminals.contains(&name.to_owned()), "{}:{line}: no terminal", page.path);
            let kill = stop.map_or(String::new(), |_| format!("kill -INT -- -$terminal_{name}; "));
            writeln!(script, "{kill}wait $terminal_{name} || true").unwrap();
            script += &until(condition, "true");
            terminals.retain(|other| other != name);
            last = None;
            continue;
        }
        if let Some(name) = block.note("file ") {
            fs::write(folder.join(name), &block.text).unwrap();
            last = None;
            continue;
        }
        if block.language == "text" {
            let named = block.note("output of ").map(|name| format!("terminal-{name}"));
            let file = named.or(last.take()).filter(|_| block.note("not output").is_none());
            let (text, numbers_vary) = (block.text.clone(), block.note("numbers vary").is_some());
            expected.extend(file.map(|file| ShownOutput { file, text, numbers_vary, line }));
            continue;
        }
        if block.language != "sh" {
            continue;
        }
        last = None;
        if block.note("not run:").is_some() {
            continue;
        }
        if let Some((name, condition)) = block.note("terminal ").map(condition) {
            let file = format!("terminal-{name}");
            writeln!(script, "( set -e\n{}) >../{file} 2>&1 &\nterminal_{name}=$!", block.text)
                .unwrap();
            script += &until(condition, &format!("kill -0 -- -$terminal_{name}"));
            terminals.push(name.to_owned());
            last = Some(file);
        } else {
            let status = if block.note("may exit 1").is_some() { " || [ $? = 1 ]" } else { "" };
            writeln!(script, "{{\n{}}} >../block-{at} 2>&1{status}", block.text).unwrap();
            last = Some(format!("block-{at}"));
        }
    }
    for name in terminals.iter().rev() {
        writeln!(script, "kill -INT -- -$terminal_{name} && wait $terminal_{name} || true")
            .unwrap();
    }
    for (from, to) in page.replace {
        assert!(script.contains(from), "{}: no command has {from:?}", page.path);
        script = script.replace(from, to);
    }
    (script + "echo end >../step\n", expected)
}

/// Returns the line with single spaces between its words, and with `#` for each number if numbers vary.
fn words(line: &str, numbers_vary: bool) -> String {
    let mut words = line.split_whitespace().collect::<Vec<_>>().join(" ");
    if numbers_vary {
        let is_number = |letter: char| letter.is_ascii_digit();
        // Each number, with its decimal point, becomes a run of `#`. Each run then shrinks to one `#`.
        words = words.replace(is_number, "#").replace("#.#", "##");
        while words.contains("##") {
            words = words.replace("##", "#");
        }
    }
    words
}

/// Returns true if `found` matches `shown`, in which `...` stands for any text and separates parts. `found` must begin
/// with the first part, end with the last one, and contain the middle parts in order.
fn is_like(shown: &str, found: &str) -> bool {
    let mut parts = shown.split("...");
    let Some(mut rest) = found.strip_prefix(parts.next().unwrap_or_default().trim_end()) else {
        return false;
    };
    // True if `found` ends with the last part examined.
    let mut ended = !shown.contains("...") && rest.is_empty();
    for part in parts.map(str::trim) {
        let Some(at) = rest.find(part) else { return false };
        ended = part.is_empty() || rest.ends_with(part);
        rest = &rest[at + part.len()..];
    }
    ended
}

/// Returns the first expected line that the output lacks after the match of the line before it.
fn lacking<'a>(expected: &'a ShownOutput, output: &str) -> Option<&'a str> {
    let mut lines = output.lines().map(|line| words(line, expected.numbers_vary));
    let mut shown = expected.text.lines().filter(|line| !line.trim().is_empty());
    shown.find(|line| {
        let line = words(line, expected.numbers_vary);
        !lines.any(|found| is_like(&line, &found))
    })
}

/// Command that runs its arguments in namespaces of their own, for mounts, network and processes.
const SANDBOX: [&str; 7] =
    ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Returns the reason why this system refuses the namespaces of [`SANDBOX`], or `None`. Tries them in the first call
/// only.
fn no_sandbox() -> Option<&'static String> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    let attempt = || {
        let all = "mount -t tmpfs tmpfs /run && ip link add veth0 type veth peer name veth1";
        let mut command = Command::new(SANDBOX[0]);
        let output = command.args(&SANDBOX[1..]).args(["bash", "-c", all]).output().unwrap();
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        (!output.status.success()).then_some(reason)
    };
    REASON.get_or_init(attempt).as_ref()
}

/// Returns true if a program is installed.
fn has(program: &str) -> bool {
    let search = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&search).any(|folder| folder.join(program).exists())
}

/// Returns the reason why this machine cannot run a page, if any.
fn obstacle(page: &Page) -> Option<String> {
    let lacking = ["ip", "bash", "unshare"].iter().chain(page.needs).find(|name| !has(name));
    if let Some(name) = lacking {
        return Some(format!("{name} is not installed"));
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Some("it needs two CPUs".to_owned());
    }
    no_sandbox().map(|reason| format!("it needs root's rights: {reason}"))
}

/// Replaces each `{page PATH N}` by the N-th `sh` block of that page, counted from 1.
fn with_blocks_of_pages(setup: &str) -> String {
    let mut parts = setup.split("{page ");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap();
        let (path, number) = name.split_once(' ').unwrap();
        let blocks = blocks(&read(path));
        let mut shell = blocks.iter().filter(|block| block.language == "sh");
        text += &shell.nth(number.parse::<usize>().unwrap() - 1).unwrap().text;
        text += rest;
    }
    text
}

/// Runs a page's commands with the programs of the folder `bin`, and compares the outputs that the page shows. Panics
/// if a command fails or an output differs.
///
/// Returns a folder with the outputs; the commands ran in its subfolder `tree`. Returns `None` if the page has no block
/// to run. Prints `SKIPPED` with the reason and returns `None` if the machine lacks something.
pub fn run(page: &Page, bin: &Path) -> Option<tempfile::TempDir> {
    let marked = marked(page.path);
    if marked.blocks == marked.skipped.len() {
        return None;
    }
    if let Some(obstacle) = obstacle(page) {
        // Written directly to standard error, because the output of passing tests is hidden.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {}: {obstacle}", page.path);
        return None;
    }
    let setup = with_blocks_of_pages(&page.setup.join("\n"));
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("tree");
    fs::create_dir_all(folder.join("target")).unwrap();
    for name in ["cosched", "examples"] {
        symlink(root().join(name), folder.join(name)).unwrap();
    }
    // Pages name the programs as a build from source does.
    symlink(bin, folder.join("target/release")).unwrap();
    let blocks = blocks(&read(page.path));
    let (text, expected) = script(page, &setup, &blocks, &folder);
    fs::write(outer.path().join("script"), &text).unwrap();

    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = [bin.to_owned()].into_iter().chain(std::env::split_paths(&path));
    let mut command = Command::new("timeout");
    command.arg("--signal=KILL").arg(PAGE_MAX).args(SANDBOX).args(["bash", "../script"]);
    command.env("PATH", std::env::join_paths(path).unwrap()).env_remove("XDG_RUNTIME_DIR");
    command.envs(page.env.iter().copied()).env_remove("WEDJAT_STATE").current_dir(&folder);
    let output = command.output().unwrap();
    // Returns the outputs of setup, blocks and terminals, for the message of a failure.
    let all = || {
        let files = fs::read_dir(outer.path()).unwrap().flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> = files.filter(|file| file.is_file()).collect();
        files.sort();
        files.retain(|file| !file.ends_with("script"));
        files.iter().fold(String::new(), |all, file| {
            let text = String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned();
            format!("{all}--- {}\n{text}", file.file_name().unwrap().to_string_lossy())
        })
    };
    if output.status.code() == Some(SKIP) {
        let reason = fs::read_to_string(outer.path().join("setup")).unwrap();
        let _ = writeln!(std::io::stderr(), "SKIPPED: {}: {}", page.path, reason.trim());
        return None;
    }
    let step = fs::read_to_string(outer.path().join("step")).unwrap_or_default();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let ended = output.status.success() && step.trim() == "end";
    assert!(ended, "{}:{step}{}: {stderr}\n{}", page.path, output.status, all());
    for expected in &expected {
        let found = fs::read(outer.path().join(&expected.file)).unwrap_or_default();
        let found = String::from_utf8_lossy(&found);
        if let Some(line) = lacking(expected, &found) {
            let place = format!("{}:{}", page.path, expected.line);
            panic!(
                "{place}: the output has no line {line:?} where the page shows it:\n{found}\n{}",
                all()
            );
        }
    }
    Some(outer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_lines_match_outputs() {
        assert!(is_like("sent ... = answered ...", "sent 5 = answered 5"));
        assert!(is_like("a b", "a b") && !is_like("a b", "a b c") && !is_like("a b", "a"));
        assert!(is_like("... VALID", "x VALID") && !is_like("... VALID", "VALID: no"));
        assert!(is_like("pid ...", "pid 7 x") && !is_like("pid ... seed 7", "pid 7 seed 8"));
        assert_eq!(words("  sent 5141.25   = 7", true), "sent # = #");
        let expected = |text: &str| ShownOutput {
            file: String::new(),
            text: text.to_owned(),
            numbers_vary: false,
            line: 1,
        };
        assert_eq!(lacking(&expected("b\n\na\n"), "a\nb\n"), Some("a"));
        assert_eq!(lacking(&expected("a\nb\n"), "a\nx\nb\n"), None);
    }

    #[test]
    fn blocks_have_text_and_comments() {
        let page = "1. x\n\n   <!-- not run: needs a NIC -->\n   ```sh\n   a\n     b\n   ```\n\n<!-- stop 2 -->\n\n```text\nc\n```\n";
        let found = blocks(page);
        assert_eq!(found.len(), 3);
        assert_eq!(
            (found[0].text.as_str(), found[0].note("not run:")),
            ("a\n  b\n", Some("needs a NIC"))
        );
        assert_eq!((found[1].note("stop "), found[2].text.as_str()), (Some("2"), "c\n"));
    }
}
