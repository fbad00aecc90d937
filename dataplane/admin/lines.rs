//! Changes of a running node's workers, pools and policies, one a line, from a file or standard input (`--changes`).
//! For example `set-policy pool=7 policy=jsq`.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use wedjat_desired::control::Change;

use super::requests::Handle;

/// Starts a thread, because reads of a pipe block. It requests the changes in this file (`-` for standard input) line
/// by line until its end. It skips empty lines and comments, which begin with `#`. Each change waits for the end of the
/// previous one. Logs an error if the system refuses the thread.
pub fn start_line_reader(path: &Path, handle: Handle) {
    let path = path.to_owned();
    let reader = move || read(&path, &handle);
    let thread = std::thread::Builder::new().name("wedjat-changes".to_owned()).spawn(reader);
    if let Err(error) = thread {
        log::error!("changes: cannot start a thread to read them: {error}");
    }
}

/// Reads lines and requests their changes. Returns at the end of the file or of the node, and after a read error, also
/// of text that is not UTF-8. Logs lines that are no changes, and continues.
fn read(path: &PathBuf, handle: &Handle) {
    let input: Box<dyn BufRead> = match path.as_os_str() == "-" {
        true => Box::new(BufReader::new(stdin())),
        false => match File::open(path) {
            Ok(file) => Box::new(BufReader::new(file)),
            Err(error) => return log::error!("changes: {}: {error}", path.display()),
        },
    };
    for line in input.lines() {
        let line = match line {
            Ok(line) => line,
            Err(error) => return log::error!("changes: {}: {error}", path.display()),
        };
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        match text.parse::<Change>() {
            Ok(change) => {
                let (done, answered) = mpsc::channel();
                // The node logs the result. Here only the end of the change matters.
                let any_version = None;
                handle.change(vec![change], any_version, move |_| _ = done.send(()));
                if answered.recv().is_err() {
                    return; // the node has ended
                }
            }
            Err(error) => log::error!("change refused: {text}: {error}"),
        }
    }
}
