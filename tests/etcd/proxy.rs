//! TCP proxy in front of a member of etcd. It can hold a request until long after its sender has given up,
//! like a kernel that retransmits it. It can also lose the answer of a request, replace it by a refusal, or
//! forward nothing at all.
//!
//! gRPC runs over HTTP/2. Each call has a stream, a number within the connection. The request's bytes travel in a
//! DATA frame, and the answer begins with a HEADERS frame. The proxy forwards whole frames. A test sets a rule (bytes
//! to look for); the first request that contains them is caught.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::timeouts::{TIMEOUT, wait_until};

/// Length of the text that begins a connection of HTTP/2.
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
/// Length of a frame's header: length of the payload (3 bytes), type, flags, and stream (4 bytes).
const HEADER: usize = 9;
// Types of frames, in byte 3 of the header (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;

/// Fate of the request that matches a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Holds this and all later frames of the connection until [`Proxy::deliver`].
    Hold,
    /// Delivers the request and ends the connection instead of passing the answer.
    LoseAnswer,
    /// Delivers the request and answers that etcd is full, like an etcd whose quota this request exceeds.
    RefuseAfter,
}

/// A request that matched a rule.
struct InterceptedCall {
    /// Frames not yet forwarded.
    frames: Vec<u8>,
    /// Connection to etcd.
    server: TcpStream,
    /// True once the test has delivered the frames.
    is_delivered: bool,
    /// True once etcd has answered.
    is_answered: bool,
}

/// State of a proxy, shared by its connections.
#[derive(Default)]
struct State {
    /// True while no frame is forwarded.
    is_cut: bool,
    /// Bytes to look for, and the fate of the first request that contains them.
    rule: Option<(Vec<u8>, Action)>,
    /// The last request that matched a rule.
    caught: Option<InterceptedCall>,
}

/// Proxy in front of a member of etcd.
pub struct Proxy {
    /// Port on which the proxy listens.
    port: u16,
    /// State, and a condition variable for the end of a cut.
    state: Arc<(Mutex<State>, Condvar)>,
}

/// Splits off one complete frame of HTTP/2, with its header. If `is_first`, splits off the connection's preface
/// and clears the flag. Returns `None` if more bytes are needed.
fn split_frame(bytes: &mut Vec<u8>, is_first: &mut bool) -> Option<Vec<u8>> {
    if *is_first {
        let preface = (bytes.len() >= PREFACE).then(|| bytes.drain(..PREFACE).collect());
        *is_first = preface.is_none();
        return preface;
    }
    let header = bytes.get(..HEADER)?;
    let length = HEADER + u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
    (bytes.len() >= length).then(|| bytes.drain(..length).collect())
}

/// Returns the number of a frame's stream.
fn stream_of(frame: &[u8]) -> [u8; 4] {
    frame[5..HEADER].try_into().unwrap()
}

/// Returns a frame that ends a call on this stream: status 200, and gRPC's code for a full etcd.
fn refusal(stream: [u8; 4]) -> Vec<u8> {
    const INDEXED_STATUS_200: u8 = 0x88;
    const END_OF_STREAM_AND_HEADERS: u8 = 5;
    let mut block = vec![INDEXED_STATUS_200];
    for (name, value) in [
        ("content-type", "application/grpc"),
        ("grpc-status", "8"),
        ("grpc-message", "etcdserver: mvcc: database space exceeded"),
    ] {
        // A literal header that stays out of the table of HPACK.
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.bytes());
        }
    }
    let length = u32::try_from(block.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([HEADERS, END_OF_STREAM_AND_HEADERS]);
    frame.extend(stream);
    frame.extend(block);
    frame
}

impl Proxy {
    /// Starts a proxy in front of `http://127.0.0.1:PORT`.
    pub fn start(member: &str) -> Self {
        let member = member.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::<(Mutex<State>, Condvar)>::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&member)) else {
                    continue;
                };
                Connection::start(client, server, &shared);
            }
        });
        Self { port, state }
    }

    /// Returns the address for the controller, in place of the member's.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Locks the state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    /// Blocks both directions of all connections, or unblocks them. The connections stay open.
    pub fn cut(&self, is_cut: bool) {
        self.state().is_cut = is_cut;
        self.state.1.notify_all();
    }

    /// Sets the fate of the next request that contains `text`.
    pub fn catch(&self, text: &str, action: Action) {
        self.state().rule = Some((text.as_bytes().to_vec(), action));
    }

    /// Returns true if any request since the start has matched a rule.
    pub fn has_caught(&self) -> bool {
        self.state().caught.is_some()
    }

    /// Delivers the held request and waits until etcd has answered it.
    pub fn deliver(&self) {
        {
            let mut state = self.state();
            let caught = state.caught.as_mut().unwrap();
            caught.is_delivered = true;
            let frames = std::mem::take(&mut caught.frames);
            caught.server.write_all(&frames).unwrap();
        }
        wait_until("etcd answers the late request", || {
            self.state().caught.as_ref().is_some_and(|caught| caught.is_answered)
        });
    }
}

/// Stream number of a request that matched a rule, and its fate.
type InterceptedStream = ([u8; 4], Action);

/// One direction of one connection.
struct Connection {
    /// Stream whose frames this direction reads.
    from: TcpStream,
    /// Stream to which it writes them.
    to: TcpStream,
    /// State of the proxy.
    shared: Arc<(Mutex<State>, Condvar)>,
    /// Stream of this connection's request that matched the rule.
    caught: Arc<Mutex<Option<InterceptedStream>>>,
}

impl Connection {
    /// Starts a thread for each direction.
    fn start(client: TcpStream, server: TcpStream, shared: &Arc<(Mutex<State>, Condvar)>) {
        let caught = Arc::default();
        let direction = |from: &TcpStream, to: &TcpStream| Self {
            from: from.try_clone().unwrap(),
            to: to.try_clone().unwrap(),
            shared: Arc::clone(shared),
            caught: Arc::clone(&caught),
        };
        let (up, down) = (direction(&client, &server), direction(&server, &client));
        std::thread::spawn(move || up.run(true));
        std::thread::spawn(move || down.run(false));
    }

    /// Forwards frames until the connection ends. `is_up` is true for the direction to etcd.
    fn run(mut self, is_up: bool) {
        let (mut bytes, mut is_first) = (Vec::new(), is_up);
        let mut some = [0; 4096];
        while let Ok(length @ 1..) = self.from.read(&mut some) {
            bytes.extend(&some[..length]);
            while let Some(frame) = split_frame(&mut bytes, &mut is_first) {
                self.wait_while_cut();
                let forwards =
                    if is_up { self.takes_request(&frame) } else { self.takes_answer(&frame) };
                if forwards && self.to.write_all(&frame).is_err() {
                    return;
                }
            }
        }
        // The connection to etcd stays open for held frames.
        if !matches!(*self.caught.lock().unwrap(), Some((_, Action::Hold))) {
            let _ = self.to.shutdown(Shutdown::Both);
        }
    }

    /// Blocks while the proxy is cut. The time limit is longer than any test waits.
    fn wait_while_cut(&self) {
        let state = self.shared.0.lock().unwrap();
        let limit = TIMEOUT + Duration::from_secs(60);
        drop(self.shared.1.wait_timeout_while(state, limit, |state| state.is_cut).unwrap());
    }

    /// Returns true if the proxy must forward this frame of the client. Holds frames from a matching request on, if
    /// its fate is [`Action::Hold`].
    fn takes_request(&self, frame: &[u8]) -> bool {
        let mut state = self.shared.0.lock().unwrap();
        let mut caught = self.caught.lock().unwrap();
        let is_request = frame.get(3) == Some(&DATA);
        let matches = |rule: &(Vec<u8>, Action)| frame.windows(rule.0.len()).any(|at| at == rule.0);
        if is_request && state.rule.as_ref().is_some_and(matches) {
            let action = state.rule.take().unwrap().1;
            *caught = Some((stream_of(frame), action));
            let server = self.to.try_clone().unwrap();
            let (frames, is_delivered, is_answered) = (Vec::new(), false, false);
            state.caught = Some(InterceptedCall { frames, server, is_delivered, is_answered });
        }
        if !matches!(*caught, Some((_, Action::Hold))) {
            return true;
        }
        // A client that gives up resets the request. The proxy discards the reset, as if etcd had begun to process
        // the request before.
        let is_end = matches!(frame.get(3), Some(&(RST_STREAM | GOAWAY)));
        // After the delivery the proxy discards further frames: the test needs only the held request.
        if let Some(held) = state.caught.as_mut().filter(|held| !is_end && !held.is_delivered) {
            held.frames.extend(frame);
        }
        false
    }

    /// Returns true if the proxy must forward this frame of etcd. It forwards none after a request of the connection
    /// has matched the rule. An answer to that request is recorded. According to the request's fate, the proxy then
    /// replaces the answer or ends the connection.
    fn takes_answer(&mut self, frame: &[u8]) -> bool {
        let Some((stream, action)) = *self.caught.lock().unwrap() else { return true };
        if frame[3] == HEADERS && stream_of(frame) == stream {
            if let Some(caught) = &mut self.shared.0.lock().unwrap().caught {
                caught.is_answered = true;
            }
            if action == Action::RefuseAfter {
                let _ = self.to.write_all(&refusal(stream));
            }
            if action == Action::LoseAnswer {
                let _ = self.to.shutdown(Shutdown::Both);
                let _ = self.from.shutdown(Shutdown::Both);
            }
        }
        false
    }
}
