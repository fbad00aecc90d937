//! Listeners and gRPC servers of a node's control and of a controller: a socket of the user's, and TCP with TLS. Connections are
//! bounded in number and by source ([`places`](super::places)), and must begin in time.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, watch};
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::server::{Connected, Router};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tower::Layer;
use tower::layer::util::{Identity as Plain, Stack};

use super::places::{Place, Places, Seat, Source};
use super::socket::SocketError;
use crate::config::{TlsConfig, private_bytes};
use crate::outage::Outage;
use crate::state::files;

/// Who connects has so long to say how it begins.
const BEGIN_MAX: Duration = Duration::from_secs(5);
/// Bytes with which every HTTP/2 connection begins.
const PREFACE: usize = 24;
/// Between two attempts to take a connection that the system refused.
const RETRY: Duration = Duration::from_millis(100);
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
        let bytes = files::read(path).map_err(|error| error.to_string());
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

/// Result of [`Listener::poll_next`].
type NextStream<S> = io::Result<Option<(S, Source)>>;

/// What takes connections.
pub trait Listener: Send + Sync + 'static {
    type Stream: Send + 'static;

    /// The next connection and its source; none when it was turned away.
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<NextStream<Self::Stream>>;
}

/// Takes those of this process's user and root.
impl Listener for tokio::net::UnixListener {
    type Stream = tokio::net::UnixStream;

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<NextStream<Self::Stream>> {
        let user = rustix::process::geteuid().as_raw();
        self.poll_accept(context).map(|accepted| {
            let (stream, _) = accepted?;
            let peer = stream.peer_cred()?;
            let source = Source::Process(peer.pid());
            Ok((peer.uid() == user || peer.uid() == 0).then_some((stream, source)))
        })
    }
}

impl Listener for tokio::net::TcpListener {
    type Stream = tokio::net::TcpStream;

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<NextStream<Self::Stream>> {
        self.poll_accept(context).map(|accepted| {
            let (stream, peer) = accepted?;
            stream.set_nodelay(true)?;
            Ok(Some((stream, Source::of(peer.ip()))))
        })
    }
}

/// Connections as they come.
pub type Accepted<S> = mpsc::Receiver<io::Result<Client<S>>>;

/// Accepts connections, each of which gets one of these places.
pub fn accept<L: Listener>(
    listener: io::Result<L>,
    places: Arc<Places>,
    mut stopped: watch::Receiver<bool>,
) -> Accepted<L::Stream> {
    let (clients, accepted) = mpsc::channel(1);
    let accepting = async move {
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => return log::error!("control: {error}"),
        };
        // Logged when it begins, not for each connection.
        let mut is_full = false;
        let mut outage = Outage::default();
        loop {
            match std::future::poll_fn(|context| listener.poll_next(context)).await {
                Ok(None) => log::warn!("control: another user's process was turned away"),
                Ok(Some((stream, source))) => {
                    if let Some(count) = outage.works(Instant::now()) {
                        log::info!(
                            "control: connections are accepted again, after {count} failures"
                        );
                    }
                    let place = places.admit(source);
                    if place.is_none() && !is_full {
                        log::warn!("control: connections are refused: all places are in use");
                    }
                    is_full = place.is_none();
                    let Some(place) = place else { continue };
                    if clients.send(Ok(Client::new(stream, place))).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    if outage.fails(Instant::now()) {
                        log::warn!(
                            "control: cannot accept connections: {error}{}; retried",
                            files::advice(&error)
                        );
                    }
                    // Descriptors may be there again later; an idle connection gives one at once.
                    if files::has_no_descriptor(&error) {
                        places.evict();
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    };
    tokio::spawn(async move {
        tokio::select! { () = accepting => {}, _ = stopped.wait_for(|stop| *stop) => {} }
    });
    accepted
}

/// A connection, which must begin in time and ends when its place is given to another.
pub struct Client<S> {
    stream: S,
    place: Place,
    /// Until so many bytes have come.
    begins: Option<Pin<Box<Sleep>>>,
    came: usize,
}

impl<S> Client<S> {
    fn new(stream: S, place: Place) -> Self {
        let begins = Some(Box::pin(tokio::time::sleep(BEGIN_MAX)));
        Self { stream, place, begins, came: 0 }
    }

    /// Its place, for its requests.
    pub fn seat(&self) -> Seat {
        self.place.seat()
    }

    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        Pin::new(&mut self.place.ended).poll(context).is_ready()
    }
}

/// Requests of a gRPC connection carry its seat, for [`Calls`].
impl<S> Connected for Client<S> {
    type ConnectInfo = Seat;

    fn connect_info(&self) -> Seat {
        self.seat()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Client<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_over(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
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

/// Counts the requests of connections that are being answered: such connections keep their places.
#[derive(Clone, Debug)]
pub struct Calls;

impl<S> Layer<S> for Calls {
    type Service = CallCounter<S>;

    fn layer(&self, inner: S) -> CallCounter<S> {
        CallCounter(inner)
    }
}

/// See [`Calls`].
#[derive(Clone, Debug)]
pub struct CallCounter<S>(S);

impl<S, B> Service<http::Request<Body>> for CallCounter<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    B: hyper::body::Body<Data = hyper::body::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let call = request.extensions().get::<Seat>().map(Seat::call);
        let answer = self.0.call(request);
        Box::pin(async move {
            // The call lasts as long as the body.
            let counted = |body: B| {
                Body::new(body.map_frame(move |frame| {
                    let _call = &call;
                    frame
                }))
            };
            Ok(answer.await?.map(counted))
        })
    }
}

/// Limits of a gRPC server.
#[derive(Clone, Copy, Debug)]
pub struct GrpcLimits {
    /// Calls of one connection at a time.
    pub calls: usize,
    /// A call must be answered within this time.
    pub call_max: Duration,
    /// Clients are asked so often whether they are there, and have so long to answer.
    pub alive: (Duration, Duration),
}

/// A gRPC server, to which services are added.
pub type GrpcServer = Server<Stack<Calls, Plain>>;

/// A gRPC server with its services.
pub type GrpcRouter = Router<Stack<Calls, Plain>>;

/// A gRPC server with these limits.
///
/// # Errors
/// When the files of TLS do not fit.
pub fn grpc(
    limits: GrpcLimits,
    tls: Option<ServerTlsConfig>,
) -> Result<GrpcServer, tonic::transport::Error> {
    let server = Server::builder()
        .timeout(limits.call_max)
        .concurrency_limit_per_connection(limits.calls)
        .max_concurrent_streams(Some(limits.calls as u32))
        .http2_keepalive_interval(Some(limits.alive.0))
        .http2_keepalive_timeout(Some(limits.alive.1))
        .http2_max_header_list_size(Some(16 << 10))
        .layer(Calls);
    match tls {
        Some(tls) => server.tls_config(tls),
        None => Ok(server),
    }
}

/// Serves accepted connections until told to stop. `name` stands before what is logged.
pub async fn run<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    name: &str,
    router: Result<GrpcRouter, tonic::transport::Error>,
    accepted: Accepted<S>,
    mut stopped: watch::Receiver<bool>,
) {
    let served = match router {
        Ok(router) => {
            let stop = async move { _ = stopped.wait_for(|stop| *stop).await };
            router.serve_with_incoming_shutdown(ReceiverStream::new(accepted), stop).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        log::error!("{name}: {error}");
    }
}
