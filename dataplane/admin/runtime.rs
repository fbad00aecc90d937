//! Thread with a tokio runtime: of a node's control, of a follower, and of a controller.

use std::future::Future;
use std::io;
use std::thread::{self, JoinHandle};

use tokio::sync::watch;

use super::cpus::stay_on;

/// Thread that runs a future. Dropping it stops the thread and waits for its end.
#[derive(Debug)]
pub struct RuntimeThread<T = ()> {
    /// Set to true to stop the thread.
    stop: watch::Sender<bool>,
    /// `None` once [`Self::result`] has taken the result.
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> RuntimeThread<T> {
    /// Starts a thread with this name on `cpus`, or anywhere if that is empty. It runs the future that `run` returns.
    /// The future must end once its argument is set to true.
    ///
    /// # Errors
    /// If the system refuses a thread or a runtime.
    pub fn start<F: Future<Output = T>>(
        name: &str,
        cpus: &[usize],
        run: impl FnOnce(watch::Receiver<bool>) -> F + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let cpus = cpus.to_vec();
        let run = move || {
            stay_on(&cpus);
            let result = runtime.block_on(run(stopped));
            // Drops unfinished calls of clients, and does not wait for tasks that block, such as a name lookup.
            runtime.shutdown_background();
            result
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Returns the result of a thread that has ended by itself, once. `None` while it runs.
    pub fn result(&mut self) -> Option<thread::Result<T>> {
        self.thread.take_if(|thread| thread.is_finished()).map(JoinHandle::join)
    }
}

impl<T> Drop for RuntimeThread<T> {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
