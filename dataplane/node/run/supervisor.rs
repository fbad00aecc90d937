//! Messages to a service manager (systemd) by the protocol of sd_notify(3): the node is ready, its cores poll, it
//! stops. The manager restarts a node whose watchdog messages are missing. The watching thread, which checks the node's
//! cores, calls this client.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use wedjat_core::state::Counters;

/// Variable with the manager's socket: a path, or an abstract name with `@`.
const SOCKET: &str = "NOTIFY_SOCKET";
/// Variable with the watchdog time in microseconds: the manager expects a message of the process within it.
const WATCHDOG: &str = "WATCHDOG_USEC";
/// Variable with the id of the process that the watchdog watches.
const WATCHDOG_PID: &str = "WATCHDOG_PID";
/// Number of watchdog messages within the watchdog time, so that a late one does no harm.
const PINGS: u32 = 3;

/// Client of the service manager; does nothing without one.
pub(super) struct Supervisor {
    /// Own socket, and the manager's address.
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Interval between watchdog messages; `None` if the manager expects none.
    period: Option<Duration>,
    /// Time of the last watchdog message.
    last_ping: Instant,
    /// Number of polls of each core at the last watchdog message.
    polls: Vec<u64>,
    /// True if the manager knows that the node is ready.
    is_ready: bool,
    /// True if the manager knows that the node stops.
    is_stopping: bool,
}

impl Supervisor {
    /// Creates the client from the environment. Logs a socket that cannot be opened.
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let socket = variable(SOCKET).and_then(|name| {
            let failed = |error: &io::Error| {
                log::warn!(
                    "{SOCKET}={name}: {error}; the supervisor receives no status of this node"
                )
            };
            socket(&name).inspect_err(failed).ok()
        });
        // A child process inherits the variables, but the watchdog watches only the process with this id.
        let is_watched =
            variable(WATCHDOG_PID).is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = variable(WATCHDOG).filter(|_| is_watched).and_then(|text| text.parse().ok());
        Self::new(socket, watchdog.map(Duration::from_micros))
    }

    /// Creates the client. `watchdog` is the manager's watchdog time.
    fn new(socket: Option<(UnixDatagram, SocketAddr)>, watchdog: Option<Duration>) -> Self {
        let period =
            watchdog.filter(|watchdog| !watchdog.is_zero()).map(|watchdog| watchdog / PINGS);
        let (last_ping, polls) = (Instant::now(), Vec::new());
        Self { socket, period, last_ping, polls, is_ready: false, is_stopping: false }
    }

    /// Sends due messages: READY once all cores have polled, and then regular watchdog messages. A watchdog message
    /// requires that every core has polled since the last one. So the manager restarts a node with a stalled core.
    pub fn update(&mut self, cores: &[Counters], now: Instant) {
        if self.socket.is_none() {
            return;
        }
        let polls = || cores.iter().map(Counters::polls);
        if !self.is_ready && polls().all(|polls| polls > 0) {
            self.is_ready = self.notify("READY=1");
        }
        let is_due = self
            .period
            .is_some_and(|period| now.saturating_duration_since(self.last_ping) >= period);
        // Before the first watchdog message `self.polls` is empty, so that message requires no later poll.
        let all_polled = || polls().zip(&self.polls).all(|(polls, &last)| polls > last);
        if is_due && self.is_ready && all_polled() && self.notify("WATCHDOG=1") {
            self.last_ping = now;
            self.polls = polls().collect();
        }
    }

    /// Reports once that the node stops.
    pub fn stopping(&mut self) {
        if !self.is_stopping {
            self.is_stopping = self.notify("STOPPING=1");
        }
    }

    /// Reports a line about the node's state, which `systemctl status` shows.
    pub fn status(&self, line: &str) {
        self.notify(&format!("STATUS={}", line.trim()));
    }

    /// Sends a message. Returns true if it was sent; false without a manager or if its queue is full, so that the
    /// caller sends it again later. Never waits.
    fn notify(&self, text: &str) -> bool {
        self.socket
            .as_ref()
            .is_some_and(|(socket, manager)| socket.send_to_addr(text.as_bytes(), manager).is_ok())
    }
}

/// Opens a socket for messages to the manager's socket with this name.
fn socket(name: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use wedjat_core::state::Counter;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the messages to the manager since the last call.
    fn notifications(manager: &UnixDatagram) -> Vec<String> {
        let mut text = [0; 1024];
        let messages = std::iter::from_fn(|| {
            manager
                .recv(&mut text)
                .ok()
                .map(|len| String::from_utf8_lossy(&text[..len]).into_owned())
        });
        messages.collect()
    }

    // promise: running.1
    #[test]
    fn service_manager_gets_ready_and_watchdog() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("manager");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let mut supervisor = Supervisor::new(socket(path.to_str().unwrap()).ok(), Some(300 * MS));
        let (cores, start) = ([Counters::heap(), Counters::heap()], supervisor.last_ping);
        // Messages at this time after the start. The watchdog time of 300 ms allows for three messages. So one is due
        // 100 ms after the last one.
        let mut messages_at = |ms: u32| {
            supervisor.update(&cores, start + ms * MS);
            notifications(&manager)
        };
        assert!(messages_at(0).is_empty());
        cores[0].add(Counter::BusyPolls, 1);
        assert!(messages_at(500).is_empty(), "one core has not polled yet");
        cores[1].add(Counter::EmptyPolls, 1);
        assert_eq!(messages_at(510), ["READY=1", "WATCHDOG=1"]);
        let poll = |core: usize| cores[core].add(Counter::EmptyPolls, 1);
        poll(0);
        poll(1);
        assert!(messages_at(600).is_empty(), "not due");
        assert_eq!(messages_at(610), ["WATCHDOG=1"]);
        poll(0);
        assert!(messages_at(5000).is_empty(), "a core stalls");
        poll(1);
        assert_eq!(messages_at(5001), ["WATCHDOG=1"]);
        supervisor.stopping();
        supervisor.stopping();
        supervisor.status("  7.0 s  rx\n");
        assert_eq!(notifications(&manager), ["STOPPING=1", "STATUS=7.0 s  rx"]);
    }

    #[test]
    fn abstract_socket_works_and_none_is_harmless() {
        let name = format!("wedjat-test-{}", std::process::id());
        let manager =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        manager.set_nonblocking(true).unwrap();
        let core = Counters::heap();
        core.add(Counter::EmptyPolls, 1);
        Supervisor::new(socket(&format!("@{name}")).ok(), None)
            .update(std::slice::from_ref(&core), Instant::now());
        assert_eq!(notifications(&manager), ["READY=1"]);
        let mut unmanaged = Supervisor::new(None, Some(MS));
        unmanaged.update(&[core], Instant::now());
        unmanaged.stopping();
        assert!(!unmanaged.is_ready && !unmanaged.is_stopping);
    }
}
