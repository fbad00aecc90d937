//! Changes that come as lines of text, from a file or standard input, while a leaf or an agent runs; its watching thread makes
//! them.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use crate::control::{Change, ChangeError, Control, Cores};

/// The control of a node, and what is asked of it.
pub(super) struct Changes<C> {
    control: Control<C>,
    lines: Option<Receiver<String>>,
    /// Read, and to be tried again: a core was busy.
    again: Option<String>,
    /// The last epoch that was told of.
    told: u64,
    started: Instant,
}

impl<C: Cores> Changes<C> {
    /// With what comes from this file, if there is one.
    pub fn new(control: Control<C>, from: Option<&Path>) -> Self {
        let told = control.membership().epoch;
        let lines = from.map(|path| read(path.to_owned()));
        Self { control, lines, again: None, told, started: Instant::now() }
    }

    /// Makes what has been asked for since, and lets go of what has left; to be called now and then.
    pub fn look(&mut self) {
        self.control.tend(self.started.elapsed().as_nanos() as u64);
        while let Some(line) = self.next() {
            let text = line.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            match text.parse().and_then(|change: Change| self.control.apply(&change)) {
                Ok(epoch) => log::info!("change {epoch}: {text}"),
                Err(ChangeError::Busy) => {
                    self.again = Some(line);
                    break;
                }
                Err(error) => log::error!("change refused: {text}: {error}"),
            }
        }
        let acknowledged = self.control.acknowledged();
        if acknowledged > self.told {
            self.told = acknowledged;
            log::info!("change {acknowledged}: {}", C::DECIDE);
        }
    }

    /// The control, with what all that was asked for has led to.
    pub fn control(&self) -> &Control<C> {
        &self.control
    }

    fn next(&mut self) -> Option<String> {
        self.again.take().or_else(|| self.lines.as_ref()?.try_recv().ok())
    }
}

/// The lines of a file, as they come, until it ends.
fn read(path: PathBuf) -> Receiver<String> {
    let (lines, received) = mpsc::channel();
    let reader = move || {
        let from: Box<dyn BufRead> = match path.as_os_str() == "-" {
            true => Box::new(BufReader::new(stdin())),
            false => match File::open(&path) {
                Ok(file) => Box::new(BufReader::new(file)),
                Err(error) => return log::error!("changes: {}: {error}", path.display()),
            },
        };
        for line in from.lines() {
            let sent = match line {
                Ok(line) => lines.send(line),
                Err(error) => return log::error!("changes: {}: {error}", path.display()),
            };
            if sent.is_err() {
                return; // the node has ended
            }
        }
    };
    let thread = std::thread::Builder::new().name("wedjat-changes".to_owned()).spawn(reader);
    if let Err(error) = thread {
        log::error!("changes: the system starts no thread to read them: {error}");
    }
    received
}
