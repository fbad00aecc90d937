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
    /// True once the run is over. The flag guards no other data, so relaxed accesses suffice.
    is_over: Arc<AtomicBool>,
    /// Thread that draws; `None` without a terminal.
    drawer: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts drawing on standard error, if that is a terminal.
    pub fn start(title: String, seconds: f64) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let drawer = std::io::stderr().is_terminal().then(|| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || draw(&title, seconds, &is_over))
        });
        Self { is_over, drawer }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(drawer) = self.drawer.take() {
            let _ = drawer.join(); // a panicked drawing must not lose the report
        }
    }
}

/// Draws the bar until the run is over.
fn draw(title: &str, seconds: f64, is_over: &AtomicBool) {
    let bar = ProgressBar::new((seconds * 1e3) as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:40}] {elapsed}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(title.to_owned());
    let start = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        bar.set_position(start.elapsed().as_millis() as u64);
        std::thread::sleep(REDRAW);
    }
    bar.finish_and_clear();
}
