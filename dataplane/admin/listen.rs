//! Listeners and gRPC servers of a node's control and of a controller: a Unix socket for processes of the same user,
//! and TCP with TLS. The number of connections is bounded, in total and per source
//! ([`connection_slots`](super::connection_slots)). A connection must send its first bytes in time.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
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
use wedjat_core::outage::Outage;
use wedjat_core::state::files;
use wedjat_desired::config::{TlsConfig, private_bytes};

use super::connection_slots::{ConnectionSlot, ConnectionSlots, ConnectionSource, SlotHandle};
use super::socket::SocketError;

/// Time limit for the preface and the TLS handshake of a new connection.
const BEGIN_MAX: Duration = Duration::from_secs(5);
/// Length of the HTTP/2 connection preface in bytes. A client that sends fewer bytes holds its slot only for
/// [`BEGIN_MAX`]. With TLS, the bytes of the handshake count. The metrics use HTTP/1.1, whose requests are longer
/// because they have a `Host` header.
const PREFACE: usize = 24;
/// Interval of attempts after the system refused to accept a connection.
const RETRY: Duration = Duration::from_millis(100);
/// Maximum size of a private key file in bytes.
const PEM_MAX: u64 = 1 << 20;

/// Error at the start of the listeners of a node's control or of a controller.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The socket cannot be created.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The system refused to listen at the address.
    #[error("`{key}` {address}: {error}; name an address of this machine and a free port")]
    Listen {
        /// Key in the configuration.
        key: &'static str,
        /// Address.
        address: SocketAddr,
        /// Error of the system.
        error: io::Error,
    },
    /// A TLS file cannot be read, or is invalid.
    #[error("`{key}` {}: {reason}", .path.display())]
    Tls {
        /// Key in the configuration.
        key: &'static str,
        /// File.
        path: PathBuf,
        /// Error in the file.
        reason: String,
    },
    /// The system refused a thread or a runtime.
    #[error("the control's thread: {0}")]
    Thread(#[from] io::Error),
}

/// Listens at an address, without blocking. `key` is its configuration key, for the error.
pub fn bind(address: SocketAddr, key: &'static str) -> Result<TcpListener, ServerError> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| ServerError::Listen { key, address, error })
}

/// Reads the TLS settings of a server from these files.
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
    // A trial build, because errors in the files appear only on use.
    tonic::transport::Server::builder().tls_config(tls.clone()).map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let reason = source.unwrap_or_else(|| error.to_string());
        let reason = format!("{reason}; certificate, key and clients' authority are files in PEM");
        refuse("control.certificate", &files.certificate)(reason)
    })?;
    Ok(tls)
}

/// Result of [`Listener::poll_next`].
type NextStream<S> = io::Result<Option<(S, ConnectionSource)>>;

/// Acceptor of connections.
pub trait Listener: Send + Sync + 'static {
    /// Connection with a client.
    type Stream: Send + 'static;

    /// Polls for the next connection and its source. Returns `None` for a rejected one.
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<NextStream<Self::Stream>>;
}

/// Accepts only processes of this process's user and of root.
impl Listener for tokio::net::UnixListener {
    type Stream = tokio::net::UnixStream;

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<NextStream<Self::Stream>> {
        let user = rustix::process::geteuid().as_raw();
        self.poll_accept(context).map(|accepted| {
            let (stream, _) = accepted?;
            let peer = stream.peer_cred()?;
            let source = ConnectionSource::Process(peer.pid());
            Ok((peer.uid() == user || peer.uid() == 0).then_some((stream, source)))
        })
    }
}

/// Accepts all peers. A server with TLS checks their certificates later.
impl Listener for tokio::net::TcpListener {
    type Stream = tokio::net::TcpStream;

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<NextStream<Self::Stream>> {
        self.poll_accept(context).map(|accepted| {
            let (stream, peer) = accepted?;
            stream.set_nodelay(true)?;
            Ok(Some((stream, ConnectionSource::of(peer.ip()))))
        })
    }
}

/// Accepted connections, in the order of arrival. All are `Ok`: tonic takes results.
pub type Connections<S> = mpsc::Receiver<io::Result<Client<S>>>;

/// Accepts connections and gives each of them a slot, until `stopped` is set. Closes those without a slot. If
/// `listener` is an error, logs it and accepts nothing.
pub fn accept<L: Listener>(
    listener: io::Result<L>,
    slots: Arc<ConnectionSlots>,
    mut stopped: watch::Receiver<bool>,
) -> Connections<L::Stream> {
    let (clients, accepted) = mpsc::channel(1);
    let accepting = async move {
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => return log::error!("control: {error}"),
        };
        // Logs the start of a full period, not each connection.
        let mut is_full = false;
        let mut outage = Outage::default();
        loop {
            match std::future::poll_fn(|context| listener.poll_next(context)).await {
                Ok(None) => log::warn!("control: refused a connection of another user's process"),
                Ok(Some((stream, source))) => {
                    if let Some(count) = outage.works(Instant::now()) {
                        log::info!("control: accepts connections again after {count} failures");
                    }
                    let slot = slots.admit(source);
                    if slot.is_none() && !is_full {
                        log::warn!("control: refuses connections: the maximum number is open");
                    }
                    is_full = slot.is_none();
                    let Some(slot) = slot else { continue };
                    if clients.send(Ok(Client::new(stream, slot))).await.is_err() {
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
                    // Descriptors may become free later. Closing an idle connection frees one at once.
                    if files::has_no_descriptor(&error) {
                        slots.evict();
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

/// Connection with a slot. Its reads fail if its first bytes are late, and after it has lost its slot.
pub struct Client<S> {
    stream: S,
    /// Permission to stay open.
    slot: ConnectionSlot,
    /// Time limit until [`PREFACE`] bytes have arrived; `None` after that.
    begin_timeout: Option<Pin<Box<Sleep>>>,
    /// Number of bytes received.
    received: usize,
}

impl<S> Client<S> {
    /// Starts the time limit for the first bytes.
    fn new(stream: S, slot: ConnectionSlot) -> Self {
        let begin_timeout = Some(Box::pin(tokio::time::sleep(BEGIN_MAX)));
        Self { stream, slot, begin_timeout, received: 0 }
    }

    /// Returns the handle of the connection's slot. Each open request holds a [`SlotHandle::call`]; while there is one,
    /// the connection cannot lose its slot.
    pub fn handle(&self) -> SlotHandle {
        self.slot.handle()
    }

    /// Returns true if the connection has lost its slot, to another connection or for lack of file descriptors.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        Pin::new(&mut self.slot.ended).poll(context).is_ready()
    }
}

/// Attaches the handle to the requests of a gRPC connection, for [`Calls`].
impl<S> Connected for Client<S> {
    type ConnectInfo = SlotHandle;

    fn connect_info(&self) -> SlotHandle {
        self.handle()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Client<S> {
    /// Reads bytes. Fails if the connection has lost its slot, or has not begun in time.
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_over(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if let Some(begin_timeout) = &mut this.begin_timeout
            && begin_timeout.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        this.received = this.received.saturating_add(buffer.filled().len() - before);
        if this.received >= PREFACE {
            this.begin_timeout = None;
        }
        polled
    }
}

/// Writes go to the stream unchanged.
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

/// Layer that counts open requests per connection. A connection with an open request keeps its slot.
#[derive(Clone, Debug)]
pub struct Calls;

impl<S> Layer<S> for Calls {
    type Service = CallCounter<S>;

    fn layer(&self, inner: S) -> CallCounter<S> {
        CallCounter(inner)
    }
}

/// Service of [`Calls`]: holds a call of the connection's slot while a request is open.
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

    /// Forwards the request, and holds a call of the connection's slot until the answer's body ends.
    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let call = request.extensions().get::<SlotHandle>().map(SlotHandle::call);
        let answer = self.0.call(request);
        Box::pin(async move {
            // The call lasts until the answer's body is dropped, because a closure of the body owns it.
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
    /// Maximum number of concurrent calls per connection.
    pub calls: usize,
    /// Time limit for the start of an answer. A stream may last longer.
    pub call_max: Duration,
    /// Interval of keep-alive probes to clients, and time limit of their answers.
    pub alive: (Duration, Duration),
}

/// gRPC server to which services can be added.
pub type GrpcServer = Server<Stack<Calls, Plain>>;

/// gRPC server with its services.
pub type GrpcRouter = Router<Stack<Calls, Plain>>;

/// Creates a gRPC server with these limits.
///
/// # Errors
/// If the TLS settings are invalid.
fn grpc(
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

/// Serves gRPC at the given sockets until `stopped` is set: a Unix socket, a TCP socket, or both. Log messages begin with
/// the name. `slots` returns the slots of one listener, and `add_services` adds the services to its server.
pub async fn serve(
    (name, limits): (&str, GrpcLimits),
    unix: Option<UnixListener>,
    tcp: Option<(TcpListener, Option<ServerTlsConfig>)>,
    slots: impl Fn() -> Arc<ConnectionSlots>,
    add_services: impl Fn(GrpcServer) -> GrpcRouter,
    stopped: &watch::Receiver<bool>,
) {
    let unix = async {
        let Some(unix) = unix else { return };
        let unix = tokio::net::UnixListener::from_std(unix);
        let accepted = accept(unix, slots(), stopped.clone());
        run(name, grpc(limits, None).map(&add_services), accepted, stopped.clone()).await;
    };
    let tcp = async {
        let Some((tcp, tls)) = tcp else { return };
        let tcp = tokio::net::TcpListener::from_std(tcp);
        let accepted = accept(tcp, slots(), stopped.clone());
        run(name, grpc(limits, tls).map(&add_services), accepted, stopped.clone()).await;
    };
    tokio::join!(unix, tcp);
}

/// Waits until `all`, which ends once `stopped` is set, has ended. Open calls delay that by at most `limit`.
pub async fn end_within(limit: Duration, all: impl Future, mut stopped: watch::Receiver<bool>) {
    let stop = async {
        let _ = stopped.wait_for(|stop| *stop).await;
        tokio::time::sleep(limit).await;
    };
    tokio::select! { _ = all => {}, () = stop => {} }
}

/// Serves accepted connections until `stopped` is set. Log messages begin with `name`.
async fn run<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    name: &str,
    router: Result<GrpcRouter, tonic::transport::Error>,
    accepted: Connections<S>,
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
