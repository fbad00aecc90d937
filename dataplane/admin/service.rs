//! gRPC calls of the control: the methods of proto/wedjat/v1/control.proto.

use std::str::FromStr;
use std::time::{Duration, Instant};

use log::LevelFilter;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::convert::{
    changes, explain_spec, refusal, show_reply, status, tap_message, tap_spec, tap_status,
};
use super::explain::ExplainSession;
use super::explanation::ExplainContext;
use super::generated as proto;
use super::generated::control_server::Control;
use super::requests::{Handle, NodeSnapshot};
use super::tap::{TapOwner, TapSpec};

/// Interval at which a stream of explanations reads the cores' records.
const READ: Duration = Duration::from_millis(2);
/// Interval of refreshing the names (pools, servers and workers) used in explanations.
const NAMES: Duration = Duration::from_secs(1);
/// Maximum number of explanations that wait for a slow client.
const EXPLAINED: usize = 256;

/// Answers calls by asking the thread that watches the node. Only `log` needs no answer of that thread.
#[derive(Debug)]
pub struct Service {
    handle: Handle,
    /// Set when the node ends. Streams then end.
    stopped: watch::Receiver<bool>,
}

impl Service {
    /// Creates the service of the node behind this handle.
    pub fn new(handle: Handle, stopped: watch::Receiver<bool>) -> Self {
        Self { handle, stopped }
    }
}

/// Streams up to `remaining` explanations to a client, until it disconnects or the node ends.
async fn stream_explanations(
    handle: Handle,
    explaining: ExplainSession,
    mut remaining: u64,
    to: mpsc::Sender<Result<proto::Explanation, Status>>,
    stopped: watch::Receiver<bool>,
) {
    let mut node: Option<(NodeSnapshot, Instant)> = None;
    while !to.is_closed() && !*stopped.borrow() {
        let records = explaining.take();
        let is_old = node.as_ref().is_none_or(|(_, since)| since.elapsed() > NAMES);
        if !records.is_empty() && is_old {
            match look(&handle).await {
                Ok(now) => node = Some((now, Instant::now())),
                Err(status) => {
                    let _ = to.send(Err(status)).await;
                    return;
                }
            }
        }
        for record in &records {
            // Always present: the names were read above.
            let Some((node, _)) = &node else { break };
            let (role, membership) = (node.snapshot.role, &node.membership);
            let (pools, explaining) = (&node.snapshot.pools[..], &explaining);
            let context = ExplainContext { role, membership, pools, explaining };
            if to.send(Ok(context.explanation(record))).await.is_err() {
                return;
            }
            remaining -= 1;
            if remaining == 0 {
                return;
            }
        }
        tokio::time::sleep(READ).await;
    }
}

/// Returns the status of a call whose answer was dropped: the node has ended.
fn ended<E>(_: E) -> Status {
    Status::unavailable("the node is stopping and accepts no changes")
}

/// Returns the node's state as its watching thread sees it.
pub async fn look(handle: &Handle) -> Result<NodeSnapshot, Status> {
    let (answer, answered) = oneshot::channel();
    handle.snapshot(move |snapshot| _ = answer.send(snapshot));
    answered.await.map_err(ended)
}

#[tonic::async_trait]
impl Control for Service {
    /// Returns the node's pools, servers, cores and ports.
    async fn show(
        &self,
        _: Request<proto::ShowRequest>,
    ) -> Result<Response<proto::ShowReply>, Status> {
        Ok(Response::new(show_reply(&look(&self.handle).await?)))
    }

    /// Makes all of the changes or none. Returns the version that contains them, once all cores use it.
    async fn change(
        &self,
        request: Request<proto::ChangeRequest>,
    ) -> Result<Response<proto::ChangeReply>, Status> {
        let proto::ChangeRequest { changes: requested, if_version } = request.into_inner();
        let changes = changes(&requested).map_err(|error| refusal(&error))?;
        let (answer, answered) = oneshot::channel();
        self.handle.change(changes, if_version, move |done| _ = answer.send(done));
        let version = answered.await.map_err(ended)?.map_err(|error| status(&error))?;
        Ok(Response::new(proto::ChangeReply { version }))
    }

    /// Makes the node read its configuration file again, and returns the changes. A dry run only computes them.
    async fn reload(
        &self,
        request: Request<proto::ReloadRequest>,
    ) -> Result<Response<proto::ReloadReply>, Status> {
        let (answer, answered) = oneshot::channel();
        self.handle.reload(request.into_inner().dry_run, move |done| _ = answer.send(done));
        let reloaded = answered.await.map_err(ended)?.map_err(|error| status(&error))?;
        let changes = reloaded.changes.iter().map(ToString::to_string).collect();
        Ok(Response::new(proto::ReloadReply { version: reloaded.version, changes }))
    }

    /// Sets the level of this process's log, unless the request has none, and returns the level.
    async fn log(
        &self,
        request: Request<proto::LogRequest>,
    ) -> Result<Response<proto::LogReply>, Status> {
        let level = request.into_inner().level;
        if !level.is_empty() {
            let filter = LevelFilter::from_str(&level).map_err(|_| {
                let found = format!("an unknown level ({} characters)", level.len());
                Status::invalid_argument(format!(
                    "{found}; allowed: off, error, warn, info, debug, trace"
                ))
            })?;
            log::set_max_level(filter);
            log::info!("logs messages of level {filter} and above from now on");
        }
        let level = log::max_level().as_str().to_lowercase();
        Ok(Response::new(proto::LogReply { level }))
    }

    /// Starts to record packets into a file.
    async fn start_tap(
        &self,
        request: Request<proto::StartTapRequest>,
    ) -> Result<Response<proto::StartTapReply>, Status> {
        let (answer, answered) = oneshot::channel();
        self.handle.start_tap(tap_spec(request.into_inner()), move |done| _ = answer.send(done));
        let tap = answered.await.map_err(ended)?.map_err(|error| tap_status(&error))?;
        Ok(Response::new(proto::StartTapReply { tap: Some(tap_message(&tap)) }))
    }

    /// Ends the recording, and returns the numbers of recorded and lost packets.
    async fn stop_tap(
        &self,
        _: Request<proto::StopTapRequest>,
    ) -> Result<Response<proto::StopTapReply>, Status> {
        let (answer, answered) = oneshot::channel();
        self.handle.stop_tap(None, move |done| answer.send(done).is_ok());
        let tap = answered.await.map_err(ended)?.map_err(|error| tap_status(&error))?;
        Ok(Response::new(proto::StopTapReply { tap: Some(tap_message(&tap)) }))
    }

    /// Stream with one message, the tap's state at its start. The tap ends with the stream.
    type CaptureStream = ReceiverStream<Result<proto::Tap, Status>>;

    /// Starts to record packets into a file, until the client ends the call, or the node ends.
    async fn capture(
        &self,
        request: Request<proto::StartTapRequest>,
    ) -> Result<Response<Self::CaptureStream>, Status> {
        let spec = TapSpec { owner: TapOwner::Call, ..tap_spec(request.into_inner()) };
        let (answer, answered) = oneshot::channel();
        self.handle.capture(spec, move |done| _ = answer.send(done));
        let session = answered.await.map_err(ended)?.map_err(|error| tap_status(&error))?;
        let (to, from) = mpsc::channel(1);
        let mut stopped = self.stopped.clone();
        tokio::spawn(async move {
            let _ = to.send(Ok(tap_message(&session.stats))).await;
            tokio::select! {
                () = to.closed() => {}
                _ = stopped.wait_for(|is_stopped| *is_stopped) => {}
            }
            drop(session);
        });
        Ok(Response::new(ReceiverStream::new(from)))
    }

    /// Explanations, as a stream to the client.
    type ExplainStream = ReceiverStream<Result<proto::Explanation, Status>>;

    /// Starts to explain packets, and returns the stream of explanations.
    async fn explain(
        &self,
        request: Request<proto::ExplainRequest>,
    ) -> Result<Response<Self::ExplainStream>, Status> {
        let spec = explain_spec(request.into_inner()).map_err(|error| tap_status(&error))?;
        let remaining = spec.packets.unwrap_or(u64::MAX);
        let (answer, answered) = oneshot::channel();
        self.handle.explain(spec, move |done| _ = answer.send(done));
        let explaining = answered.await.map_err(ended)?.map_err(|error| tap_status(&error))?;
        let (to, from) = mpsc::channel(EXPLAINED);
        tokio::spawn(stream_explanations(
            self.handle.clone(),
            explaining,
            remaining,
            to,
            self.stopped.clone(),
        ));
        Ok(Response::new(ReceiverStream::new(from)))
    }
}
