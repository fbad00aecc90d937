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

/// Reads lines and requests their changes. Returns at the end of the file or of the node, and after a read error. Logs
/// lines that are no changes, also those that are not UTF-8, and continues.
fn read(path: &PathBuf, handle: &Handle) {
    let input: Box<dyn BufRead> = match path.as_os_str() == "-" {
        true => Box::new(BufReader::new(stdin())),
        false => match File::open(path) {
            Ok(file) => Box::new(BufReader::new(file)),
            Err(error) => return log::error!("changes: {}: {error}", path.display()),
        },
    };
    for line in input.split(b'\n') {
        let line = match line {
            Ok(line) => line,
            Err(error) => return log::error!("changes: {}: {error}", path.display()),
        };
        match change_in(&line) {
            Ok(None) => {}
            Ok(Some(change)) => {
                let (done, answered) = mpsc::channel();
                // The node logs the result. Here only the end of the change matters.
                let any_version = None;
                handle.change(vec![change], any_version, move |_| _ = done.send(()));
                if answered.recv().is_err() {
                    return; // the node has ended
                }
            }
            Err(error) => log::error!("change refused: {error}"),
        }
    }
}

/// Parses a line. Returns `None` for an empty line or a comment. The error has the line and the reason.
fn change_in(line: &[u8]) -> Result<Option<Change>, String> {
    let Ok(text) = str::from_utf8(line) else {
        let text = String::from_utf8_lossy(line);
        return Err(format!("{}: the line is not UTF-8", text.trim()));
    };
    let text = text.trim();
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| format!("{text}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_is_not_utf8_is_refused() {
        assert_eq!(change_in(b"  \r"), Ok(None));
        assert_eq!(change_in(b"# \"a\""), Ok(None));
        let change = change_in(b"drain workers=0-3\r").unwrap().unwrap();
        assert_eq!(change.to_string(), "drain workers=0-3");
        assert!(change_in(b"drain workers=\xff").unwrap_err().contains("the line is not UTF-8"));
        assert!(change_in(b"drain").unwrap_err().starts_with("drain: "));
    }
}
