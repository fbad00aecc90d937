//! Asking a running node over its control's gRPC.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use tokio::runtime::Runtime;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};

use super::convert::message;
use super::generated as proto;
use super::generated::control_client::ControlClient;
use super::socket::socket_path;
use crate::control::Change;
use crate::state::files::{self, Found};

/// A node has so long to take a connection, and to answer.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const CALL_MAX: Duration = Duration::from_secs(15);
/// Time between two attempts to connect to a socket whose queue of connections is full.
const CONNECT_AGAIN: Duration = Duration::from_millis(10);
/// A whole node may have so many bytes.
const REPLY_MAX: usize = 64 << 20;

/// Where a node is asked.
#[derive(Clone, Debug)]
pub enum Access {
    /// At the socket beside this state file.
    State(PathBuf),
    /// Over TCP.
    Tcp {
        /// As in `https://leaf1:7070`, or `http://127.0.0.1:7070`.
        url: String,
        /// With `https`: who signs nodes' certificates, our certificate and its key, files in PEM.
        tls: Option<[PathBuf; 3]>,
    },
}

/// Why a node was not asked, or what it said.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No node runs there.
    #[error("{}: no node answers there ({reason}); name the state file of one that runs, as --node or in WEDJAT_STATE", .path.display())]
    Nobody {
        /// The state file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// It can't be reached.
    #[error("{0}")]
    Connect(String),
    /// It refused; nothing has changed.
    #[error("{}", .0.message())]
    Refused(Box<tonic::Status>),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<tonic::Status> for ClientError {
    fn from(status: tonic::Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

/// A connection to a node.
#[derive(Debug)]
pub struct Connection {
    runtime: Runtime,
    client: ControlClient<Channel>,
}

impl Connection {
    /// With a node.
    ///
    /// # Errors
    /// When it can't be reached.
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

    /// What there is.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn show(&mut self) -> Result<proto::ShowReply, ClientError> {
        let call = self.client.show(timed(proto::ShowRequest {}));
        Ok(self.runtime.block_on(call)?.into_inner())
    }

    /// Makes changes, all of them at once or none; returns the version that has them, by which all cores decide.
    ///
    /// # Errors
    /// When it refuses, or does not answer.
    pub fn change(
        &mut self,
        changes: &[Change],
        if_version: Option<u64>,
    ) -> Result<u64, ClientError> {
        let changes = changes.iter().map(message).collect();
        let call = self.client.change(timed(proto::ChangeRequest { changes, if_version }));
        Ok(self.runtime.block_on(call)?.into_inner().version)
    }

    /// Has it read its configuration again.
    ///
    /// # Errors
    /// When it refuses, or does not answer.
    pub fn reload(&mut self, dry_run: bool) -> Result<proto::ReloadReply, ClientError> {
        let call = self.client.reload(timed(proto::ReloadRequest { dry_run }));
        Ok(self.runtime.block_on(call)?.into_inner())
    }

    /// Has it log messages of this level and above, or tells which it logs when the level is empty.
    ///
    /// # Errors
    /// When it refuses, or does not answer.
    pub fn log(&mut self, level: &str) -> Result<String, ClientError> {
        let call = self.client.log(timed(proto::LogRequest { level: level.to_owned() }));
        Ok(self.runtime.block_on(call)?.into_inner().level)
    }

    /// Has it record what passes in a file on its host; returns what it records.
    ///
    /// # Errors
    /// When it refuses, or does not answer.
    pub fn start_tap(&mut self, asked: proto::StartTapRequest) -> Result<proto::Tap, ClientError> {
        let call = self.client.start_tap(timed(asked));
        tap(self.runtime.block_on(call)?.into_inner().tap)
    }

    /// Has it end that; returns what was recorded.
    ///
    /// # Errors
    /// When it refuses, or does not answer.
    pub fn stop_tap(&mut self) -> Result<proto::Tap, ClientError> {
        let call = self.client.stop_tap(timed(proto::StopTapRequest {}));
        tap(self.runtime.block_on(call)?.into_inner().tap)
    }

    /// Has it explain what becomes of packets; `each` gets one after the other, and says whether more are wanted. Ends by itself after
    /// as many as were asked for, or after `time`.
    ///
    /// # Errors
    /// When it refuses, ends, or does not answer.
    pub fn explain(
        &mut self,
        asked: proto::ExplainRequest,
        time: Option<Duration>,
        mut each: impl FnMut(proto::Explanation) -> bool,
    ) -> Result<(), ClientError> {
        let (client, began) = (&mut self.client, Instant::now());
        self.runtime.block_on(async {
            let mut stream = client.explain(tonic::Request::new(asked)).await?.into_inner();
            loop {
                let left = time.map_or(Duration::MAX, |time| time.saturating_sub(began.elapsed()));
                let Ok(next) = tokio::time::timeout(left, stream.message()).await else {
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

fn tap(reply: Option<proto::Tap>) -> Result<proto::Tap, ClientError> {
    let none = || tonic::Status::internal("the node does not say what it records");
    reply.ok_or_else(|| none().into())
}

fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_MAX);
    request
}

async fn over_socket(state: &Path) -> Result<Channel, ClientError> {
    let nobody = |reason: String| ClientError::Nobody { path: state.to_owned(), reason };
    channel_at(&socket_path(state), None).await.map_err(nobody)
}

/// How often the other side is asked during a call whether it is there, and how long it has to say so.
pub(crate) type Alive = (Duration, Duration);

/// A connection over a socket of this user's or root's.
///
/// # Errors
/// Why there is none.
pub(crate) async fn channel_at(path: &Path, alive: Option<Alive>) -> Result<Channel, String> {
    let found = Found::behind(path).map_err(|error| error.to_string())?;
    let found = found.ok_or_else(|| format!("there is no {}", path.display()))?;
    if !found.is_socket() || !found.is_own_or_roots() {
        return Err(format!("{} is {}", path.display(), found.describe()));
    }
    // By way of its place, since an address has room for 107 bytes only.
    let at = found.path();
    let connect = tower_connector(at);
    let endpoint = Endpoint::from_static("http://node").connect_timeout(CONNECT_MAX);
    let endpoint = asking(endpoint, alive);
    let channel = endpoint.connect_with_connector(connect).await;
    drop(found);
    channel.map_err(|error| told(&error))
}

fn asking(endpoint: Endpoint, alive: Option<Alive>) -> Endpoint {
    match alive {
        Some((often, long)) => endpoint.http2_keep_alive_interval(often).keep_alive_timeout(long),
        None => endpoint,
    }
}

fn tower_connector(
    at: PathBuf,
) -> impl tonic::codegen::Service<
    Uri,
    Response = TokioIo<tokio::net::UnixStream>,
    Error = io::Error,
    Future = impl Future<Output = io::Result<TokioIo<tokio::net::UnixStream>>> + Send,
> + Send {
    tower::service_fn(move |_: Uri| {
        let at = at.clone();
        async move { Ok(TokioIo::new(connect(&at).await?)) }
    })
}

/// Connects to a Unix socket. A full queue of connections is an error there (EAGAIN) and not a wait as over TCP, so it tries again.
async fn connect(at: &Path) -> io::Result<tokio::net::UnixStream> {
    let began = tokio::time::Instant::now();
    loop {
        match tokio::net::UnixStream::connect(at).await {
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

async fn over_tcp(url: &str, tls: Option<&[PathBuf; 3]>) -> Result<Channel, ClientError> {
    let refuse = |reason: String| ClientError::Connect(format!("{url}: {reason}"));
    channel_to(url, tls, None).await.map_err(refuse)
}

/// A connection over TCP; with these files, the authority's, our certificate and its key, over TLS.
///
/// # Errors
/// Why there is none.
pub(crate) async fn channel_to(
    url: &str,
    tls: Option<&[PathBuf; 3]>,
    alive: Option<Alive>,
) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|error| told(&error))?
        .connect_timeout(CONNECT_MAX);
    let mut endpoint = asking(endpoint, alive);
    if let Some(files) = tls {
        let read = |path: &PathBuf| {
            let bytes = files::read(path);
            bytes.map_err(|error| format!("{}: {error}", path.display()))
        };
        let [ca, certificate, key] = files;
        let config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(read(ca)?))
            .identity(Identity::from_pem(read(certificate)?, read(key)?));
        endpoint = endpoint.tls_config(config).map_err(|error| told(&error))?;
    }
    endpoint.connect().await.map_err(|error| told(&error))
}

/// An error with what it came from.
fn told(error: &dyn std::error::Error) -> String {
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
