//! What the control's thread, and a controller's, listen with: a socket of the user's, and TCP with TLS. Connections are bounded in
//! number and must begin in time.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Sleep;
use tonic::transport::server::Connected;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use super::socket::SocketError;
use crate::config::{TlsConfig, private_bytes};
use crate::outage::Outage;
use crate::state::files::advice;

/// Who connects has so long to say how it begins.
const BEGIN_MAX: Duration = Duration::from_secs(5);
/// Bytes with which every HTTP/2 connection begins.
const PREFACE: usize = 24;
/// A certificate's file has at most so many bytes.
const PEM_MAX: u64 = 1 << 20;

/// Why a node's control can't be reached.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// No listener.
    #[error("`{key}` {address}: {error}; name an address of this machine and a free port")]
    Listen {
        /// The key in the configuration.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// A file of TLS.
    #[error("`{key}` {}: {reason}", .path.display())]
    Tls {
        /// The key in the configuration.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No thread or runtime.
    #[error("the control's thread: {0}")]
    Thread(#[from] io::Error),
}

/// Listens at this address, which stands at `key`.
pub fn bind(address: SocketAddr, key: &'static str) -> Result<TcpListener, ServerError> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| ServerError::Listen { key, address, error })
}

/// What a server shows and asks for, of these files.
pub fn tls(files: &TlsConfig) -> Result<ServerTlsConfig, ServerError> {
    let refuse = |key: &'static str, path: &Path| {
        let path = path.to_owned();
        move |reason: String| ServerError::Tls { key, path, reason }
    };
    let read = |key, path: &Path| {
        let bytes = std::fs::read(path).map_err(|error| error.to_string());
        bytes.map_err(refuse(key, path))
    };
    let certificate = read("control.certificate", &files.certificate)?;
    let ca = read("control.clients_ca", &files.clients_ca)?;
    let key = private_bytes(&files.key, PEM_MAX).map_err(refuse("control.key", &files.key))?;
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(certificate, key))
        .client_ca_root(Certificate::from_pem(ca))
        .timeout(BEGIN_MAX);
    // What is wrong with them shows when they are used.
    tonic::transport::Server::builder().tls_config(tls.clone()).map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let reason = source.unwrap_or_else(|| error.to_string());
        let reason = format!("{reason}; certificate, key and clients' authority are files in PEM");
        refuse("control.certificate", &files.certificate)(reason)
    })?;
    Ok(tls)
}

/// What takes connections.
pub trait Listener: Send + Sync + 'static {
    type Stream: Send + 'static;

    /// The next connection; none when it was turned away.
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<io::Result<Option<Self::Stream>>>;
}

/// Takes those of this process's user and root.
impl Listener for tokio::net::UnixListener {
    type Stream = tokio::net::UnixStream;

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<io::Result<Option<Self::Stream>>> {
        let user = rustix::process::geteuid().as_raw();
        self.poll_accept(context).map(|accepted| {
            let (stream, _) = accepted?;
            let peer = stream.peer_cred()?.uid();
            Ok((peer == user || peer == 0).then_some(stream))
        })
    }
}

impl Listener for tokio::net::TcpListener {
    type Stream = tokio::net::TcpStream;

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<io::Result<Option<Self::Stream>>> {
        self.poll_accept(context).map(|accepted| {
            let (stream, _) = accepted?;
            stream.set_nodelay(true)?;
            Ok(Some(stream))
        })
    }
}

/// Connections as they come.
pub type Accepted<S> = mpsc::Receiver<io::Result<Client<S>>>;

/// Accepts as many as may be connected at a time.
pub fn accept<L: Listener>(
    listener: io::Result<L>,
    places: usize,
    mut stopped: watch::Receiver<bool>,
) -> Accepted<L::Stream> {
    let (clients, accepted) = mpsc::channel(1);
    let accepting = async move {
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => return log::error!("control: {error}"),
        };
        let places = Arc::new(Semaphore::new(places));
        let mut outage = Outage::default();
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            match std::future::poll_fn(|context| listener.poll_next(context)).await {
                Ok(None) => log::warn!("control: another user's process was turned away"),
                Ok(Some(stream)) => {
                    if let Some(count) = outage.works(Instant::now()) {
                        log::info!(
                            "control: connections are accepted again, after {count} failures"
                        );
                    }
                    if clients.send(Ok(Client::new(stream, place))).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    // Descriptors may be there again later.
                    if outage.fails(Instant::now()) {
                        log::warn!(
                            "control: cannot accept connections: {error}{}; retried",
                            advice(&error)
                        );
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    };
    tokio::spawn(async move {
        tokio::select! { () = accepting => {}, _ = stopped.wait_for(|stop| *stop) => {} }
    });
    accepted
}

/// A connection, which must begin in time and has one of so many places.
pub struct Client<S> {
    stream: S,
    _place: OwnedSemaphorePermit,
    /// Until so many bytes have come.
    begins: Option<Pin<Box<Sleep>>>,
    came: usize,
}

impl<S> Client<S> {
    fn new(stream: S, place: OwnedSemaphorePermit) -> Self {
        let begins = Some(Box::pin(tokio::time::sleep(BEGIN_MAX)));
        Self { stream, _place: place, begins, came: 0 }
    }
}

impl<S: Connected> Connected for Client<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Client<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(begins) = &mut this.begins
            && begins.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        this.came = this.came.saturating_add(buffer.filled().len() - before);
        if this.came >= PREFACE {
            this.begins = None;
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Client<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
