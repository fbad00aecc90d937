//! Asking a controller over its gRPC, as an operator.

use std::path::PathBuf;
use std::time::Duration;

use tokio::runtime::Runtime;
use tonic::transport::Channel;

use super::command::Command;
use super::generated as proto;
use super::generated::fabric_client::FabricClient;
use crate::admin::{ClientError, channel_at, channel_to};
use crate::config::ControllerAddress;

/// A controller has so long to answer.
const CALL_MAX: Duration = Duration::from_secs(20);
/// It is asked so often whether it is there, and has so long to say so: one that stands still is left for another.
pub(super) const ALIVE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));
/// A whole fabric may have so many bytes.
const REPLY_MAX: usize = 256 << 20;

/// A connection with a controller.
#[derive(Debug)]
pub struct Operator {
    runtime: Runtime,
    client: FabricClient<Channel>,
}

/// A connection with a controller; over https with these files, the authority's, our certificate and its key.
///
/// # Errors
/// Why there is none.
pub(super) async fn connect(
    to: &ControllerAddress,
    tls: Option<&[PathBuf; 3]>,
) -> Result<FabricClient<Channel>, String> {
    let channel = match to {
        ControllerAddress::Socket(path) => channel_at(path, Some(ALIVE)).await,
        ControllerAddress::Url(url) => channel_to(url, tls, Some(ALIVE)).await,
    };
    let client = FabricClient::new(channel.map_err(|reason| format!("{to}: {reason}"))?);
    Ok(client.max_decoding_message_size(REPLY_MAX))
}

fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_MAX);
    request
}

impl Operator {
    /// With the controller there.
    ///
    /// # Errors
    /// When it can't be reached.
    pub fn open(to: &ControllerAddress, tls: Option<&[PathBuf; 3]>) -> Result<Self, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(connect(to, tls)).map_err(|reason| {
            ClientError::Connect(format!("no controller answers at {reason}; name one that runs"))
        })?;
        Ok(Self { runtime, client })
    }

    /// Has it do a command.
    ///
    /// # Errors
    /// When it refuses, or does not answer.
    pub fn command(
        &mut self,
        command: &Command,
        if_version: Option<u64>,
    ) -> Result<proto::CommandReply, ClientError> {
        let command = command.to_string();
        let call = self.client.command(timed(proto::CommandRequest { command, if_version }));
        Ok(self.runtime.block_on(call)?.into_inner())
    }

    /// What there is.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn topology(&mut self) -> Result<proto::TopologyReply, ClientError> {
        let call = self.client.topology(timed(proto::TopologyRequest {}));
        Ok(self.runtime.block_on(call)?.into_inner())
    }
}
