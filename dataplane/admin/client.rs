//! gRPC client of a running node's control, for `wedjat ctl`, `wedjat explain` and `wedjat advise`. The clients of
//! controllers and of etcd share its functions that open a channel.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use tokio::runtime::Runtime;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};
use wedjat_core::state::files::{self, ExistingFile};
use wedjat_desired::control::Change;

use super::generated as proto;
use super::generated::control_client::ControlClient;
use super::socket::socket_path;

/// Time limit of a connection attempt.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Time limit of a call. Explanations have it only for their start, because the client ends them.
const CALL_MAX: Duration = Duration::from_secs(15);
/// Time between two attempts to connect to a socket with a full queue of connections.
const CONNECT_AGAIN: Duration = Duration::from_millis(10);
/// Maximum time for which a node that explains packets to another client is asked again, and the pause before each
/// attempt. The node notices the end of an earlier client late.
const EXPLAIN_BUSY_MAX: Duration = Duration::from_secs(2);
const EXPLAIN_AGAIN: Duration = Duration::from_millis(50);
/// Maximum number of bytes of a reply, enough for a whole node.
const REPLY_MAX: usize = 64 << 20;

/// Address of a node's control.
#[derive(Clone, Debug)]
pub enum Access {
    /// Socket beside this state file.
    State(PathBuf),
    /// Address over TCP.
    Tcp {
        /// URL such as `https://leaf1:7070` or `http://127.0.0.1:7070`.
        url: String,
        /// Files in PEM for `https`: the authority of the nodes' certificates, the client's certificate, and
        /// its key.
        tls: Option<[PathBuf; 3]>,
    },
}

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No node answers at the socket of a state file.
    #[error("{}: no node answers ({reason}); name the state file of a running node with --node or WEDJAT_STATE", .path.display())]
    Nobody {
        /// State file.
        path: PathBuf,
        /// Error of the system, or fault of the socket: it is missing, or another user's.
        reason: String,
    },
    /// The node at a URL, or a controller, cannot be reached.
    #[error("{0}")]
    Connect(String),
    /// Status of a failed call. If the node refused it, nothing has changed. After a timeout (`DEADLINE_EXCEEDED`) or a
    /// lost connection, the changes may be made.
    #[error("{}", .0.message())]
    Refused(Box<tonic::Status>),
    /// The system refused the runtime of the calls.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<tonic::Status> for ClientError {
    fn from(status: tonic::Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

/// Open call of [`Connection::capture`]. Its drop ends the call, and the node then ends the tap.
#[derive(Debug)]
pub struct CaptureCall {
    _call: tonic::Streaming<proto::Tap>,
}

/// Connection to a node.
#[derive(Debug)]
pub struct Connection {
    runtime: Runtime,
    client: ControlClient<Channel>,
}

impl Connection {
    /// Connects to a node.
    ///
    /// # Errors
    /// If the node cannot be reached.
    pub fn open(to: &Access) -> Result<Self, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let channel = runtime.block_on(async {
            match to {
                Access::State(path) => over_socket(path).await,
                Access::Tcp { url, tls } => over_tcp(url, tls.as_ref()).await,
            }
        })?;
        let client = ControlClient::new(channel).max_decoding_message_size(REPLY_MAX);
        Ok(Self { runtime, client })
    }

    /// Returns the node's state.
    ///
    /// # Errors
    /// If the node does not answer.
    pub fn show(&mut self) -> Result<proto::ShowReply, ClientError> {
        let call = self.client.show(timed(proto::ShowRequest {}));
        Ok(self.runtime.block_on(call)?.into_inner())
    }

    /// Makes all of the changes, or none. With `if_version`, the node refuses them at another version. Returns the
    /// node's version that contains them, once all cores use it.
    ///
    /// # Errors
    /// If the node refuses, or does not answer.
    pub fn change(
        &mut self,
        changes: &[Change],
        if_version: Option<u64>,
    ) -> Result<u64, ClientError> {
        let changes = changes.iter().map(ToString::to_string).collect();
        let call = self.client.change(timed(proto::ChangeRequest { changes, if_version }));
        Ok(self.runtime.block_on(call)?.into_inner().version)
    }

    /// Makes the node read its configuration file again. With `dry_run` it only computes the changes.
    ///
    /// # Errors
    /// If the node refuses, or does not answer.
    pub fn reload(&mut self, dry_run: bool) -> Result<proto::ReloadReply, ClientError> {
        let call = self.client.reload(timed(proto::ReloadRequest { dry_run }));
        Ok(self.runtime.block_on(call)?.into_inner())
    }

    /// Makes the node log messages of this level and above. An empty level changes nothing. Returns the
    /// node's level.
    ///
    /// # Errors
    /// If the node refuses, or does not answer.
    pub fn log(&mut self, level: &str) -> Result<String, ClientError> {
        let call = self.client.log(timed(proto::LogRequest { level: level.to_owned() }));
        Ok(self.runtime.block_on(call)?.into_inner().level)
    }

    /// Starts a tap: makes the node record packets to a file on its host. Returns its state.
    ///
    /// # Errors
    /// If the node refuses, or does not answer.
    pub fn start_tap(
        &mut self,
        request: proto::StartTapRequest,
    ) -> Result<proto::Tap, ClientError> {
        let call = self.client.start_tap(timed(request));
        tap(self.runtime.block_on(call)?.into_inner().tap)
    }

    /// Starts a tap like [`Connection::start_tap`], which ends with the returned call. The node then removes the file,
    /// unless [`Connection::stop_tap`] has returned.
    ///
    /// # Errors
    /// If the node refuses, or does not answer.
    pub fn capture(&mut self, request: proto::StartTapRequest) -> Result<CaptureCall, ClientError> {
        let client = &mut self.client;
        self.runtime.block_on(async {
            let limit =
                tonic::Status::deadline_exceeded("the node has not started the tap in time");
            // Only the start has a time limit: the call lasts until the end of the capture.
            let begun = async {
                let mut call = client.capture(tonic::Request::new(request)).await?.into_inner();
                tap(call.message().await?)?;
                Ok(CaptureCall { _call: call })
            };
            tokio::time::timeout(CALL_MAX, begun).await.unwrap_or_else(|_| Err(limit.into()))
        })
    }

    /// Makes the node end its tap. Returns the result.
    ///
    /// # Errors
    /// If the node refuses, or does not answer.
    pub fn stop_tap(&mut self) -> Result<proto::Tap, ClientError> {
        let call = self.client.stop_tap(timed(proto::StopTapRequest {}));
        tap(self.runtime.block_on(call)?.into_inner().tap)
    }

    /// Makes the node explain packets. Calls `each` with every explanation until it returns false. Also ends
    /// after the requested number of packets, at the end of the node, or at `time` after the node's answer. A node
    /// serves one such client; this one waits shortly for the end of an earlier one.
    ///
    /// # Errors
    /// If the node refuses, does not answer, or the connection is lost.
    pub fn explain(
        &mut self,
        request: proto::ExplainRequest,
        time: Option<Duration>,
        mut each: impl FnMut(proto::Explanation) -> bool,
    ) -> Result<(), ClientError> {
        let client = &mut self.client;
        self.runtime.block_on(async {
            let asked = Instant::now();
            let limit = tonic::Status::deadline_exceeded(
                "the node has not started to explain packets in time",
            );
            // Only the start has a time limit: the call lasts until the end of the explanations.
            let started = async {
                loop {
                    match client.explain(tonic::Request::new(request.clone())).await {
                        Err(status) if is_busy(&status) && asked.elapsed() < EXPLAIN_BUSY_MAX => {
                            tokio::time::sleep(EXPLAIN_AGAIN).await;
                        }
                        answer => break answer,
                    }
                }
            };
            let started = tokio::time::timeout(CALL_MAX, started).await;
            let mut stream = started.unwrap_or(Err(limit))?.into_inner();
            let began = Instant::now();
            loop {
                let remaining =
                    time.map_or(Duration::MAX, |time| time.saturating_sub(began.elapsed()));
                let Ok(next) = tokio::time::timeout(remaining, stream.message()).await else {
                    return Ok(());
                };
                let Some(explanation) = next? else { return Ok(()) };
                if !each(explanation) {
                    return Ok(());
                }
            }
        })
    }
}

/// Returns true if a node has refused to explain packets because it does so for another client.
fn is_busy(status: &tonic::Status) -> bool {
    status.code() == tonic::Code::ResourceExhausted
}

/// Returns the tap in a reply; an error for a reply without it.
fn tap(reply: Option<proto::Tap>) -> Result<proto::Tap, ClientError> {
    let none = || tonic::Status::internal("the node's answer lacks the tap");
    reply.ok_or_else(|| none().into())
}

/// Returns a request with the time limit of a call.
fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_MAX);
    request
}

/// Connects to the socket beside a state file.
async fn over_socket(state: &Path) -> Result<Channel, ClientError> {
    let nobody = |reason: String| ClientError::Nobody { path: state.to_owned(), reason };
    channel_at(&socket_path(state), None).await.map_err(nobody)
}

/// Interval of HTTP/2 keep-alive probes while a call is open, and time limit of their answers.
pub type KeepAlive = (Duration, Duration);

/// Connects to a socket of this user or of root. Another user's process could pose as the node.
///
/// # Errors
/// Reason why the connection failed.
pub async fn channel_at(path: &Path, keep_alive: Option<KeepAlive>) -> Result<Channel, String> {
    let socket = ExistingFile::behind(path).map_err(|error| error.to_string())?;
    let socket = socket.ok_or_else(|| format!("{} does not exist", path.display()))?;
    if !socket.is_socket() || !socket.is_own_or_roots() {
        return Err(format!("{} is {}", path.display(), socket.describe()));
    }
    // A Unix socket address has room for 107 bytes only. The path of an open file in /proc is short.
    let path_in_proc = socket.path();
    let connect = connector(path_in_proc);
    let endpoint = Endpoint::from_static("http://node").connect_timeout(CONNECT_MAX);
    let endpoint = with_keep_alive(endpoint, keep_alive);
    let channel = endpoint.connect_with_connector(connect).await;
    drop(socket); // its descriptor kept the path in /proc valid
    channel.map_err(|error| with_context(&error))
}

/// Adds keep-alive probes, if any.
fn with_keep_alive(endpoint: Endpoint, keep_alive: Option<KeepAlive>) -> Endpoint {
    match keep_alive {
        Some((interval, timeout)) => {
            endpoint.http2_keep_alive_interval(interval).keep_alive_timeout(timeout)
        }
        None => endpoint,
    }
}

/// Returns tonic's connector for a Unix socket. It ignores the endpoint's address.
fn connector(
    path: PathBuf,
) -> impl tonic::codegen::Service<
    Uri,
    Response = TokioIo<tokio::net::UnixStream>,
    Error = io::Error,
    Future = impl Future<Output = io::Result<TokioIo<tokio::net::UnixStream>>> + Send,
> + Send {
    tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok(TokioIo::new(connect(&path).await?)) }
    })
}

/// Connects to a Unix socket, and tries again while its queue of connections is full: `connect` then fails
/// with EAGAIN, and does not wait as over TCP.
async fn connect(path: &Path) -> io::Result<tokio::net::UnixStream> {
    let began = tokio::time::Instant::now();
    loop {
        match tokio::net::UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if began.elapsed() > CONNECT_MAX {
                    return Err(error);
                }
                tokio::time::sleep(CONNECT_AGAIN).await;
            }
            connected => return connected,
        }
    }
}

/// Connects over TCP, without keep-alive probes.
async fn over_tcp(url: &str, tls: Option<&[PathBuf; 3]>) -> Result<Channel, ClientError> {
    let refuse = |reason: String| ClientError::Connect(format!("{url}: {reason}"));
    channel_to(url, tls, None).await.map_err(refuse)
}

/// Connects over TCP. With `tls` it uses TLS with these files: the authority, the client's certificate, and
/// its key.
///
/// # Errors
/// Reason why the connection failed.
pub async fn channel_to(
    url: &str,
    tls: Option<&[PathBuf; 3]>,
    keep_alive: Option<KeepAlive>,
) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|error| with_context(&error))?
        .connect_timeout(CONNECT_MAX);
    let mut endpoint = with_keep_alive(endpoint, keep_alive);
    if let Some(files) = tls {
        let read = |path: &PathBuf| {
            let bytes = files::read(path);
            bytes.map_err(|error| format!("{}: {error}", path.display()))
        };
        let [ca, certificate, key] = files;
        let config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(read(ca)?))
            .identity(Identity::from_pem(read(certificate)?, read(key)?));
        endpoint = endpoint.tls_config(config).map_err(|error| with_context(&error))?;
    }
    endpoint.connect().await.map_err(|error| with_context(&error))
}

/// Returns the text of an error and of its sources.
fn with_context(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
    };

    use super::*;
    use crate::convert::tap_status;
    use crate::tap::TapError;

    #[test]
    fn only_a_busy_node_is_asked_again() {
        assert!(is_busy(&tap_status(&TapError::Explaining)));
        assert!(!is_busy(&tap_status(&TapError::Nowhere)), "has no port to record");
        assert!(!is_busy(&tap_status(&TapError::LateToExplain)));
    }

    #[test]
    fn connecting_waits_while_the_queue_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let flags = SocketFlags::CLOEXEC;
        let server = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        bind(&server, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&server, 0).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // Connections that fill the server's queue.
            let mut queued = Vec::new();
            let full = loop {
                match tokio::net::UnixStream::connect(&path).await {
                    Ok(stream) => queued.push(stream),
                    Err(error) => break error,
                }
            };
            assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
            let accepting = async {
                tokio::time::sleep(5 * CONNECT_AGAIN).await;
                rustix::net::accept(&server).unwrap()
            };
            let (connected, _accepted) = tokio::join!(connect(&path), accepting);
            connected.unwrap();
        });
    }
}
