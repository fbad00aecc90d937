//! Thread of a controller. It runs two tasks: the desk, which executes commands while this controller leads, and the
//! gRPC service over a Unix socket and TCP. The program `wedjat` starts one with [`Controller::start`].

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{mpsc, watch};
use tonic::transport::ServerTlsConfig;
use wedjat_admin::connection_slots::ConnectionSlots;
use wedjat_admin::listen::{self, GrpcLimits, GrpcRouter, GrpcServer, ServerError, bind, tls};
use wedjat_admin::{OwnersSocket, RuntimeThread, SocketError};
use wedjat_desired::config::{ControllerConfig, StoreConfig};

use super::desk::{ControllerRole, Desk, RoleReader};
use super::generated::fabric_server::FabricServer;
use super::service::Service;
use super::store::{EtcdAccess, EtcdStore, FileStore, Store, StoreError};
use super::view::Position;

/// Descriptor of the calls for the reflection service, by which tools such as grpcurl list them.
const DESCRIPTOR: &[u8] = include_bytes!("descriptor.bin");
/// Maximum number of connections of one listener, if the system allows as many.
const CONNECTIONS: usize = 1 << 15;
/// Limits of the gRPC servers: concurrent calls of a connection, time until an answer begins, and keep-alive.
const LIMITS: GrpcLimits =
    GrpcLimits { calls: 16, call_max: Duration::from_secs(15), alive: KEEP_ALIVE };
/// Maximum size of a request in bytes.
const REQUEST_MAX: usize = 256 << 10;
/// Keep-alive of clients, mostly nodes: interval of pings, and timeout of their answers.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(3));
/// Size of the queue of requests from the service to the desk. Further calls wait for room.
const WAITING_MAX: usize = 64;
/// Timeout for open calls when the controller ends.
const END_MAX: Duration = Duration::from_secs(2);

/// Reason why a controller does not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// Error of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Error of a listener.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The system has no thread or runtime.
    #[error("the controller's thread: {0}")]
    Thread(#[from] io::Error),
    /// The thread panicked.
    #[error(
        "the controller's thread panicked ({0}); this is a fault of wedjat: report it, and start the controller again"
    )]
    Panic(String),
}

impl From<SocketError> for ControllerError {
    fn from(error: SocketError) -> Self {
        Self::Server(error.into())
    }
}

/// Running controller. Dropping it stops the controller.
#[derive(Debug)]
pub struct Controller {
    /// Thread, with the error of the desk as its result.
    thread: RuntimeThread<Result<(), StoreError>>,
    /// TCP address at which it listens, if any.
    pub listen: Option<SocketAddr>,
    /// Role: leader or standby.
    role: RoleReader,
}

/// Listeners of a controller.
struct Listeners {
    /// Unix socket that only its owner may use.
    socket: Option<OwnersSocket>,
    /// Listener for TCP, and the configuration of TLS, if clients must use it.
    listen: Option<(TcpListener, Option<ServerTlsConfig>)>,
}

impl Controller {
    /// Starts a controller. It leads as soon as its store lets it.
    ///
    /// # Errors
    /// If a listener, the store or the thread is not available.
    pub fn start(config: &ControllerConfig) -> Result<Self, ControllerError> {
        Self::start_as(config, false)
    }

    /// Starts a controller that sends nodes the state of its store, including nodes with a newer version. Operators use
    /// it after they have restored the store from an old copy.
    ///
    /// # Errors
    /// Like [`Controller::start`].
    pub fn restore(config: &ControllerConfig) -> Result<Self, ControllerError> {
        Self::start_as(config, true)
    }

    /// Opens the listeners and the store, and starts the thread. `restores` lets nodes accept an older state.
    fn start_as(config: &ControllerConfig, restores: bool) -> Result<Self, ControllerError> {
        let socket = config.socket.as_deref().map(OwnersSocket::bind).transpose()?;
        let tls = config.control.tls.as_ref().map(tls).transpose()?;
        let listen =
            config.control.listen.map(|address| bind(address, "control.listen")).transpose()?;
        let address = listen.as_ref().and_then(|listener| listener.local_addr().ok());
        let listeners = Listeners { socket, listen: listen.map(|listen| (listen, tls)) };
        let parts = Parts { listeners, id: config.id, restores };
        allow_descriptors();
        match &config.store {
            StoreConfig::File(path) => parts.start(FileStore::open(path)?, address),
            StoreConfig::Etcd { members, prefix, lease_s, tls } => {
                let own_address = address.map(|address| address.to_string());
                let own_address =
                    own_address.or_else(|| Some(config.socket.as_ref()?.display().to_string()));
                let name =
                    format!("controller {} at {}", config.id, own_address.unwrap_or_default());
                let (members, prefix, tls) = (members.clone(), prefix.clone(), tls.clone());
                let lease = Duration::from_secs(*lease_s);
                parts.start(
                    EtcdStore::new(EtcdAccess { members, prefix, lease, tls, name }),
                    address,
                )
            }
        }
    }

    /// Returns the current role: leader or standby.
    #[must_use]
    pub fn role(&self) -> ControllerRole {
        self.role.now()
    }

    /// Returns the error with which the controller's thread ended, once. `None` while the thread runs, and
    /// after an end without an error.
    pub fn ended(&mut self) -> Option<ControllerError> {
        match self.thread.result()? {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.into()),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                Some(ControllerError::Panic(text.unwrap_or("without a message").to_owned()))
            }
        }
    }
}

/// Raises the limit of file descriptors to the user's maximum. Each node takes one.
fn allow_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Returns the slots of one of `listeners` listeners: its limits on connections. One source may have a quarter of the
/// slots without a request.
fn connection_slots(listeners: u64) -> Arc<ConnectionSlots> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let max = slot_count(limit, listeners);
    ConnectionSlots::new(max, (max / 4).max(1))
}

/// Returns the number of slots of each listener, for a limit of file descriptors. Each listener gets an equal share,
/// but at least 16. One more share is for the store and files.
fn slot_count(limit: u64, listeners: u64) -> usize {
    usize::try_from(limit / (listeners + 1)).unwrap_or(usize::MAX).clamp(16, CONNECTIONS)
}

/// Inputs of a controller's start, except the store, whose type depends on the configuration.
struct Parts {
    listeners: Listeners,
    /// Id of the controller.
    id: u16,
    /// True to let nodes accept an older state.
    restores: bool,
}

impl Parts {
    /// Starts the thread with this store. `listen` is the TCP address of the listener, if any.
    fn start<S: Store + 'static>(
        self,
        store: S,
        listen: Option<SocketAddr>,
    ) -> Result<Controller, ControllerError> {
        let (sender, requests) = mpsc::channel(WAITING_MAX);
        let (role, reader) = RoleReader::new();
        let service = Service::new(self.id, self.restores, sender, reader.clone());
        let run = |stopped: watch::Receiver<bool>| async move {
            let desk =
                Desk { store, requests, role, known: Position::default(), compaction_tried: 0 };
            let ended = stopped.clone();
            let served = async {
                serve(self.listeners, service, stopped).await;
                Ok(())
            };
            // Serving ends when the desk fails. Both end when `stopped` is set.
            tokio::try_join!(desk.run(ended), served).map(|_| ())
        };
        let thread = RuntimeThread::start("wedjat-fabric", &[], run)?;
        Ok(Controller { thread, listen, role: reader })
    }
}

/// Serves at the Unix socket and TCP until `stopped` is set. Open calls then have [`END_MAX`] to end.
async fn serve(listeners: Listeners, service: Service, stopped: watch::Receiver<bool>) {
    let Listeners { mut socket, listen } = listeners;
    let add_services = |server| services(server, service.clone());
    let unix = socket.as_mut().and_then(OwnersSocket::take_listener);
    let listeners = u64::from(unix.is_some()) + u64::from(listen.is_some());
    let slots = || connection_slots(listeners);
    let grpc = listen::serve(("controller", LIMITS), unix, listen, slots, add_services, &stopped);
    listen::end_within(END_MAX, grpc, stopped.clone()).await;
}

/// Adds the controller's services: its calls, and reflection, by which tools such as grpcurl list them.
fn services(mut server: GrpcServer, service: Service) -> GrpcRouter {
    let calls = FabricServer::new(service).max_decoding_message_size(REQUEST_MAX);
    let mut router = server.add_service(calls);
    let builder = tonic_reflection::server::Builder::configure();
    if let Ok(v1) = builder.register_encoded_file_descriptor_set(DESCRIPTOR).build_v1() {
        router = router.add_service(v1);
    }
    router
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_listeners_leave_descriptors_to_the_store() {
        assert_eq!((slot_count(1024, 1), slot_count(1024, 2)), (512, 341));
        assert_eq!((slot_count(8, 2), slot_count(u64::MAX, 2)), (16, CONNECTIONS));
    }
}
