//! The client and worker programs printed in docs/tutorials/client-and-worker.md, in Python, C and Go: each client
//! against each worker, without a leaf between them. The test compiles the page's own text, so that the page stays
//! true.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod timeouts;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};

use timeouts::*;

/// A language of the page, with the command lines of its worker and its client. The test appends the worker's address.
struct Pair {
    /// Name of the language.
    language: &'static str,
    /// Words of the worker's command line.
    worker: Vec<String>,
    /// Words of the client's command line.
    client: Vec<String>,
    /// Number of tasks that the client sends.
    tasks: usize,
}

/// Returns the text of the page.
fn page() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join("docs/tutorials/client-and-worker.md")).unwrap()
}

/// Writes the page's blocks of a language into files of these names.
fn write_blocks(folder: &Path, language: &str, names: &[&str]) {
    let page = page();
    let blocks: Vec<_> = page.split(&format!("```{language}\n")).skip(1).collect();
    assert_eq!(blocks.len(), names.len(), "blocks of {language}");
    for (block, name) in blocks.iter().zip(names) {
        fs::write(folder.join(name), block.split("```").next().unwrap()).unwrap();
    }
}

/// Splits a command line.
fn words(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
}

/// Runs the command line of a compiler in `folder`; it must succeed.
fn compile(folder: &Path, command: &str) {
    let words = words(command);
    let mut compiler = Command::new(&words[0]);
    // Go needs a cache folder. Without modules and other toolchains it needs no network.
    compiler.args(&words[1..]).current_dir(folder).env("GOCACHE", folder.join("cache"));
    let output = compiler.env("GO111MODULE", "off").env("GOTOOLCHAIN", "local").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {stderr}");
}

/// Writes and compiles the pair of each installed language.
fn pairs(folder: &Path) -> Vec<Pair> {
    let mut pairs = Vec::new();
    write_blocks(folder, "python", &["worker.py", "client.py"]);
    write_blocks(folder, "c", &["pair.c"]);
    write_blocks(folder, "go", &["pair.go"]);
    for (language, program, package) in
        [("Python", "python3", "python3"), ("C", "cc", "gcc"), ("Go", "go", "golang-go")]
    {
        if Command::new(program).arg("version").output().is_err() {
            // Written directly to standard error, because the output of passing tests is hidden.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: client and worker in {language} need {program} (Debian: {package})"
            );
            continue;
        }
        let [worker, client, tasks] = match language {
            "Python" => ["python3 worker.py", "python3 client.py", "3"],
            "C" => {
                compile(folder, "cc -O2 -Wall -Wextra -Werror -o pair pair.c");
                ["./pair worker", "./pair client", "1"]
            }
            _ => {
                compile(folder, "go vet pair.go");
                compile(folder, "go build -o pair-go pair.go");
                ["./pair-go worker", "./pair-go client", "1"]
            }
        };
        let (worker, client, tasks) = (words(worker), words(client), tasks.parse().unwrap());
        pairs.push(Pair { language, worker, client, tasks });
    }
    pairs
}

/// A worker that ends with the test.
struct WorkerProcess(Child);

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// promise: packages.2
#[test]
fn every_client_is_answered_by_every_worker() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = pairs(folder.path());
    let page = page();
    let expected = page.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let expected: Vec<_> = expected.lines().collect();
    // Returns the command of a program in the folder, or of an installed one, with an address.
    let start = |words: &[String], address: &str| {
        let program = folder.path().join(&words[0]);
        let program = if program.exists() { program } else { words[0].clone().into() };
        let mut command = Command::new(program);
        command.args(&words[1..]).arg(address).current_dir(folder.path());
        command
    };
    // A loopback address of this process, because the page's port may be in use at 127.0.0.1.
    let process = std::process::id();
    let address = format!("127.77.{}.{}", process / 250 % 250, process % 250 + 1);
    for worker in &pairs {
        let mut running = WorkerProcess(start(&worker.worker, &address).spawn().unwrap());
        for client in &pairs {
            let mut stdout = String::new();
            // The worker may not have started yet, and the clients wait for a second only.
            wait_until("the client is answered", || {
                assert!(running.0.try_wait().unwrap().is_none(), "{} has ended", worker.language);
                let output = start(&client.client, &address).output().unwrap();
                stdout = String::from_utf8_lossy(&output.stdout).into_owned();
                output.status.success()
            });
            // A client of one task numbers it 7. The page's output begins with task 0.
            let stdout: Vec<_> =
                stdout.lines().map(|line| line.replace("task 7", "task 0")).collect();
            let names = (client.language, worker.language);
            assert_eq!(stdout, expected[..client.tasks], "client and worker in {names:?}");
        }
    }
}
