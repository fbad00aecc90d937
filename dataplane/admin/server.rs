//! Thread of the control: gRPC over a socket of the user and over TCP, /metrics and the status page. It avoids the CPUs
//! of dispatcher cores if there are others. It sends requests to the thread that watches the node, except those for the
//! level of the log.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use tonic::transport::ServerTlsConfig;
use wedjat_desired::config::ControlConfig;

use super::connection_slots::ConnectionSlots;
use super::generated::control_server::ControlServer;
use super::http;
use super::listen::{self, GrpcLimits, GrpcRouter, GrpcServer, ServerError, accept, bind, tls};
use super::requests::Handle;
use super::runtime::RuntimeThread;
use super::service::Service;
use super::socket::{OwnersSocket, socket_path};

/// File descriptor set of the .proto file, for the gRPC reflection service.
const DESCRIPTOR: &[u8] = include_bytes!("descriptor.bin");
/// Maximum number of connections of one listener, and of one source's connections that have not made a request yet.
/// [`ConnectionSlots`] enforces both.
const SLOTS: (usize, usize) = (64, 16);
/// Limits of the gRPC servers.
const LIMITS: GrpcLimits =
    GrpcLimits { calls: 16, call_max: Duration::from_secs(10), alive: ALIVE };
/// Maximum size of a request in bytes.
const REQUEST_MAX: usize = 256 << 10;
/// Interval of keep-alive probes to clients, and time limit of their answers.
const ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
/// Time limit for open calls at the end.
const END_MAX: Duration = Duration::from_secs(1);

/// Thread of the control, with its addresses.
#[derive(Debug)]
pub struct Server {
    _thread: RuntimeThread,
    /// Address of the control over TCP.
    pub listen: Option<SocketAddr>,
    /// Address of /metrics and the status page.
    pub metrics: Option<SocketAddr>,
}

/// Sockets to listen at.
struct Listeners {
    /// Control beside the state file.
    socket: Option<OwnersSocket>,
    /// Control over TCP, with TLS if configured.
    listen: Option<(TcpListener, Option<ServerTlsConfig>)>,
    /// Metrics and status page.
    metrics: Option<TcpListener>,
}

impl Server {
    /// Listens at the configured addresses, and at the socket beside the state file if there is one. The
    /// thread runs on `cpus`, or anywhere if that is empty. Returns `None` if there is nothing to listen at.
    ///
    /// # Errors
    /// If a socket or a thread cannot be created, or a TLS file cannot be used.
    pub fn start(
        config: &ControlConfig,
        state: Option<&Path>,
        handle: Handle,
        cpus: &[usize],
    ) -> Result<Option<Self>, ServerError> {
        let socket = state.map(|state| OwnersSocket::bind(&socket_path(state))).transpose()?;
        let tls = config.tls.as_ref().map(tls).transpose()?;
        let listen = config.listen.map(|at| bind(at, "control.listen")).transpose()?;
        let metrics = config.metrics.map(|at| bind(at, "control.metrics")).transpose()?;
        if socket.is_none() && listen.is_none() && metrics.is_none() {
            return Ok(None);
        }
        let address =
            |listener: Option<&TcpListener>| listener.and_then(|one| one.local_addr().ok());
        let (at, metrics_at) = (address(listen.as_ref()), address(metrics.as_ref()));
        let listeners = Listeners { socket, listen: listen.map(|listen| (listen, tls)), metrics };
        let serve = |stopped| serve(listeners, handle, stopped);
        let thread = RuntimeThread::start("wedjat-control", cpus, serve)?;
        Ok(Some(Self { _thread: thread, listen: at, metrics: metrics_at }))
    }
}

/// Serves until `stopped` is set, and then for at most [`END_MAX`], so that open calls can end.
async fn serve(listeners: Listeners, handle: Handle, stopped: watch::Receiver<bool>) {
    let Listeners { mut socket, listen, metrics } = listeners;
    let add_services = |server| services(server, &handle, &stopped);
    // Each listener has its own slots, so that remote clients cannot take those of the local socket.
    let connection_slots = || ConnectionSlots::new(SLOTS.0, SLOTS.1);
    let unix = socket.as_mut().and_then(OwnersSocket::take_listener);
    let grpc =
        listen::serve(("control", LIMITS), unix, listen, connection_slots, add_services, &stopped);
    let metrics = async {
        let Some(listener) = metrics else { return };
        let listener = tokio::net::TcpListener::from_std(listener);
        let accepted = accept(listener, connection_slots(), stopped.clone());
        // The header of a request may take as long as the interval of the probes.
        http::run(accepted, handle.clone(), ALIVE.0).await;
    };
    let all = async { tokio::join!(grpc, metrics) };
    listen::end_within(END_MAX, all, stopped.clone()).await;
}

/// Adds the control's services to a gRPC server: the control itself, and reflection.
fn services(
    mut server: GrpcServer,
    handle: &Handle,
    stopped: &watch::Receiver<bool>,
) -> GrpcRouter {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTOR)
    };
    let service = Service::new(handle.clone(), stopped.clone());
    let control = ControlServer::new(service).max_decoding_message_size(REQUEST_MAX);
    let mut router = server.add_service(control);
    // Cannot fail: tests/control_generated.rs checks the descriptor against the .proto file.
    if let (Ok(v1), Ok(v1alpha)) = (builder().build_v1(), builder().build_v1alpha()) {
        router = router.add_service(v1).add_service(v1alpha);
    }
    router
}
