//! Progress bar on a terminal, drawn by a separate thread so that sending cores never write.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Interval between drawings.
const REDRAW: Duration = Duration::from_millis(200);

/// Progress bar over the time of a run; removed on drop.
pub struct Progress {
    over: Arc<AtomicBool>,
    drawer: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts drawing on standard error, if that is a terminal.
    pub fn start(what: String, seconds: f64) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let drawer = std::io::stderr().is_terminal().then(|| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || draw(&what, seconds, &over))
        });
        Self { over, drawer }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(drawer) = self.drawer.take() {
            let _ = drawer.join(); // a panicked drawing must not lose the report
        }
    }
}

fn draw(what: &str, seconds: f64, over: &AtomicBool) {
    let bar = ProgressBar::new((seconds * 1e3) as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:40}] {elapsed}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what.to_owned());
    let start = Instant::now();
    while !over.load(Ordering::Relaxed) {
        bar.set_position(start.elapsed().as_millis() as u64);
        std::thread::sleep(REDRAW);
    }
    bar.finish_and_clear();
}
