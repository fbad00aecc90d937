//! The calls of the control's gRPC.

use std::str::FromStr;

use log::LevelFilter;
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use super::convert::{changes, refusal, shown_node, shown_tap, status, tap_spec, tap_status};
use super::generated as proto;
use super::generated::control_server::Control;
use super::requests::{Handle, Seen};

/// Answers by asking the thread that watches the node.
#[derive(Debug)]
pub struct Service {
    handle: Handle,
}

impl Service {
    /// Of the node behind this handle.
    pub fn new(handle: Handle) -> Self {
        Self { handle }
    }
}

fn ended<E>(_: E) -> Status {
    Status::unavailable("the node is ending; it takes no changes any more")
}

/// The node as its watching thread sees it.
pub async fn look(handle: &Handle) -> Result<Seen, Status> {
    let (answer, answered) = oneshot::channel();
    handle.look(move |seen| _ = answer.send(seen));
    answered.await.map_err(ended)
}

#[tonic::async_trait]
impl Control for Service {
    async fn show(
        &self,
        _: Request<proto::ShowRequest>,
    ) -> Result<Response<proto::ShowReply>, Status> {
        Ok(Response::new(shown_node(&look(&self.handle).await?)))
    }

    async fn change(
        &self,
        request: Request<proto::ChangeRequest>,
    ) -> Result<Response<proto::ChangeReply>, Status> {
        let proto::ChangeRequest { changes: asked, if_version } = request.into_inner();
        let changes = changes(asked).map_err(|error| refusal(&error))?;
        let (answer, answered) = oneshot::channel();
        self.handle.change(changes, if_version, move |done| _ = answer.send(done));
        let version = answered.await.map_err(ended)?.map_err(|error| status(&error))?;
        Ok(Response::new(proto::ChangeReply { version }))
    }

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

    async fn log(
        &self,
        request: Request<proto::LogRequest>,
    ) -> Result<Response<proto::LogReply>, Status> {
        let level = request.into_inner().level;
        if !level.is_empty() {
            let found = LevelFilter::from_str(&level).map_err(|_| {
                let found = format!("a level that there is not ({} letters)", level.len());
                Status::invalid_argument(format!(
                    "{found}; allowed: off, error, warn, info, debug, trace"
                ))
            })?;
            log::set_max_level(found);
            log::info!("messages of level {found} and above are logged from now on");
        }
        let level = log::max_level().as_str().to_lowercase();
        Ok(Response::new(proto::LogReply { level }))
    }

    async fn start_tap(
        &self,
        request: Request<proto::StartTapRequest>,
    ) -> Result<Response<proto::StartTapReply>, Status> {
        let (answer, answered) = oneshot::channel();
        self.handle.start_tap(tap_spec(request.into_inner()), move |done| _ = answer.send(done));
        let tap = answered.await.map_err(ended)?.map_err(|error| tap_status(&error))?;
        Ok(Response::new(proto::StartTapReply { tap: Some(shown_tap(&tap)) }))
    }

    async fn stop_tap(
        &self,
        _: Request<proto::StopTapRequest>,
    ) -> Result<Response<proto::StopTapReply>, Status> {
        let (answer, answered) = oneshot::channel();
        self.handle.stop_tap(move |done| _ = answer.send(done));
        let tap = answered.await.map_err(ended)?.map_err(|error| tap_status(&error))?;
        Ok(Response::new(proto::StopTapReply { tap: Some(shown_tap(&tap)) }))
    }
}
