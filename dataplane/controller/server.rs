//! A controller's thread: its desk, and gRPC over a socket of the user's and over TCP.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{mpsc, watch};
use tonic::transport::ServerTlsConfig;

use super::desk::{Desk, Standing, StandingReader};
use super::generated::fabric_server::FabricServer;
use super::service::Service;
use super::store::{EtcdAccess, EtcdStore, FileStore, Store, StoreError};
use crate::admin::listen::{
    self, GrpcLimits, GrpcRouter, GrpcServer, ServerError, accept, bind, tls,
};
use crate::admin::places::Places;
use crate::admin::{OwnersSocket, SocketError};
use crate::config::{ControllerConfig, StoreConfig};

/// What the reflection service tells of the calls.
const DESCRIPTOR: &[u8] = include_bytes!("descriptor.bin");
/// Connections of one listener, if the system allows as many.
const CONNECTIONS: usize = 1 << 15;
/// Limits of the gRPC servers.
const LIMITS: GrpcLimits =
    GrpcLimits { calls: 16, call_max: Duration::from_secs(15), alive: ALIVE };
/// Bytes of a message.
const REQUEST_MAX: usize = 256 << 10;
/// Nodes are asked so often whether they are there, and have so long to say so.
const ALIVE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(3));
/// Commands that wait.
const ASKS: usize = 64;
/// The thread has so long to end what it does.
const END_MAX: Duration = Duration::from_secs(2);

/// Why a controller does not start.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Where it listens.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// No thread or runtime.
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

/// A controller that runs.
#[derive(Debug)]
pub struct Controller {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<Result<(), StoreError>>>,
    /// Where it is reached over TCP.
    pub listen: Option<SocketAddr>,
    standing: StandingReader,
}

/// What it listens at.
struct Listeners {
    socket: Option<OwnersSocket>,
    listen: Option<(TcpListener, Option<ServerTlsConfig>)>,
}

impl Controller {
    /// Starts one; it leads as soon as its store lets it.
    ///
    /// # Errors
    /// What can't be had.
    pub fn start(config: &ControllerConfig) -> Result<Self, ControllerError> {
        Self::start_as(config, false)
    }

    /// Starts one that has nodes take what its store has, also those that run a newer version.
    ///
    /// # Errors
    /// Those of [`Controller::start`].
    pub fn restore(config: &ControllerConfig) -> Result<Self, ControllerError> {
        Self::start_as(config, true)
    }

    fn start_as(config: &ControllerConfig, restores: bool) -> Result<Self, ControllerError> {
        let socket = config.socket.as_deref().map(OwnersSocket::bind).transpose()?;
        let tls = config.control.tls.as_ref().map(tls).transpose()?;
        let listen = config.control.listen.map(|at| bind(at, "control.listen")).transpose()?;
        let at = listen.as_ref().and_then(|listener| listener.local_addr().ok());
        let listeners = Listeners { socket, listen: listen.map(|listen| (listen, tls)) };
        let parts = Parts { listeners, id: config.id, restores };
        allow_descriptors();
        match &config.store {
            StoreConfig::File(path) => parts.start(FileStore::open(path)?, at),
            StoreConfig::Etcd { members, prefix, lease_s, tls } => {
                let reached = at.map(|at| at.to_string());
                let reached =
                    reached.or_else(|| Some(config.socket.as_ref()?.display().to_string()));
                let name = format!("controller {} at {}", config.id, reached.unwrap_or_default());
                let (members, prefix, tls) = (members.clone(), prefix.clone(), tls.clone());
                let lease = Duration::from_secs(*lease_s);
                parts.start(EtcdStore::new(EtcdAccess { members, prefix, lease, tls, name }), at)
            }
        }
    }

    /// What it is at this moment.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing.now()
    }

    /// Returns how the controller's thread ended, once, if it ended by itself.
    pub fn ended(&mut self) -> Option<ControllerError> {
        let thread = self.thread.take_if(|thread| thread.is_finished())?;
        match thread.join() {
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

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Each node is a descriptor: as many as this user may have.
fn allow_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Places of one listener. The other half of the descriptors is for the other listener, the store and files.
fn places() -> Arc<Places> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = usize::try_from(limit / 2).unwrap_or(usize::MAX).clamp(16, CONNECTIONS);
    Places::new(most, (most / 4).max(1))
}

/// What a controller starts with.
struct Parts {
    listeners: Listeners,
    id: u16,
    restores: bool,
}

impl Parts {
    fn start<S: Store + 'static>(
        self,
        store: S,
        listen: Option<SocketAddr>,
    ) -> Result<Controller, ControllerError> {
        let (stop, stopped) = watch::channel(false);
        let (asks, asked) = mpsc::channel(ASKS);
        let (standing, seen) = StandingReader::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let service = Service::new(self.id, self.restores, asks, seen.clone());
        let (listeners, ended) = (self.listeners, stopped.clone());
        let run = move || {
            let desk = Desk { store, asked, standing, known: (0, 0) };
            let served = async {
                serve(listeners, service, stopped).await;
                Ok(())
            };
            // Nobody is served any more once the desk has failed.
            let done = runtime.block_on(async { tokio::try_join!(desk.run(ended), served) });
            runtime.shutdown_background();
            done.map(|_| ())
        };
        let thread = std::thread::Builder::new().name("wedjat-fabric".to_owned()).spawn(run)?;
        Ok(Controller { stop, thread: Some(thread), listen, standing: seen })
    }
}

/// Serves until it is told to stop.
async fn serve(listeners: Listeners, service: Service, stopped: watch::Receiver<bool>) {
    let Listeners { mut socket, listen } = listeners;
    let add_services = |server| services(server, service.clone());
    let unix = socket.as_mut().and_then(OwnersSocket::take_listener);
    let unix = async {
        let Some(unix) = unix else { return };
        let listener = tokio::net::UnixListener::from_std(unix);
        let accepted = accept(listener, places(), stopped.clone());
        let router = listen::grpc(LIMITS, None).map(add_services);
        listen::run("controller", router, accepted, stopped.clone()).await;
    };
    let tcp = async {
        let Some((listener, tls)) = listen else { return };
        let listener = tokio::net::TcpListener::from_std(listener);
        let accepted = accept(listener, places(), stopped.clone());
        let router = listen::grpc(LIMITS, tls).map(add_services);
        listen::run("controller", router, accepted, stopped.clone()).await;
    };
    let mut ended = stopped.clone();
    let stop = async {
        let _ = ended.wait_for(|stop| *stop).await;
        tokio::time::sleep(END_MAX).await;
    };
    let all = async { tokio::join!(unix, tcp) };
    tokio::select! { _ = all => {}, () = stop => {} }
}

/// Adds the controller's services.
fn services(mut server: GrpcServer, service: Service) -> GrpcRouter {
    let calls = FabricServer::new(service).max_decoding_message_size(REQUEST_MAX);
    let mut router = server.add_service(calls);
    let builder = tonic_reflection::server::Builder::configure();
    if let Ok(v1) = builder.register_encoded_file_descriptor_set(DESCRIPTOR).build_v1() {
        router = router.add_service(v1);
    }
    router
}
