//! Clients of a controller's gRPC service: the operator's [`ControllerClient`], which `wedjat ctl` uses, and the
//! connection of a node that follows.

use std::path::PathBuf;
use std::time::Duration;

use tokio::runtime::Runtime;
use tonic::transport::Channel;
use wedjat_admin::{ClientError, channel_at, channel_to};
use wedjat_desired::config::ControllerAddress;

use super::command::Command;
use super::generated as proto;
use super::generated::fabric_client::FabricClient;

/// Timeout of a call.
const CALL_MAX: Duration = Duration::from_secs(20);
/// Keep-alive of a connection: interval of pings, and timeout of their answers. The timeout ends calls to a stalled
/// controller, and a node then tries another one.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));
/// Maximum size of a reply in bytes. It must hold a whole fabric.
const REPLY_MAX: usize = 256 << 20;

/// Operator's connection to a controller. Its calls block.
#[derive(Debug)]
pub struct ControllerClient {
    /// Runtime that executes the calls on the caller's thread.
    runtime: Runtime,
    client: FabricClient<Channel>,
}

/// Connects to a controller, for a node that follows or an operator. For https, `tls` names the files of the authority,
/// the client's certificate and its private key.
///
/// # Errors
/// If the connection fails. The error is the reason.
pub(super) async fn connect(
    to: &ControllerAddress,
    tls: Option<&[PathBuf; 3]>,
) -> Result<FabricClient<Channel>, String> {
    let channel = match to {
        ControllerAddress::Socket(path) => channel_at(path, Some(KEEP_ALIVE)).await,
        ControllerAddress::Url(url) => channel_to(url, tls, Some(KEEP_ALIVE)).await,
    };
    let client = FabricClient::new(channel.map_err(|reason| format!("{to}: {reason}"))?);
    Ok(client.max_decoding_message_size(REPLY_MAX))
}

/// Returns a request with the timeout of a call.
fn with_timeout<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_MAX);
    request
}

impl ControllerClient {
    /// Connects to the controller at `to`. For https, `tls` names the files of the authority, the client's certificate
    /// and its private key.
    ///
    /// # Errors
    /// If the controller cannot be reached, or the system has no runtime for the calls.
    pub fn open(to: &ControllerAddress, tls: Option<&[PathBuf; 3]>) -> Result<Self, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(connect(to, tls)).map_err(|reason| {
            ClientError::Connect(format!("no controller answers at {reason}; name one that runs"))
        })?;
        Ok(Self { runtime, client })
    }

    /// Executes a command. Returns the fabric's version after it, the pool that it added or changed, and notes. If
    /// `if_version` is given and the fabric has another version, the controller refuses the command.
    ///
    /// # Errors
    /// If the controller refuses the command or does not answer.
    pub fn command(
        &mut self,
        command: &Command,
        if_version: Option<u64>,
    ) -> Result<proto::CommandReply, ClientError> {
        let command = command.to_string();
        let call = self.client.command(with_timeout(proto::CommandRequest { command, if_version }));
        Ok(self.runtime.block_on(call)?.into_inner())
    }

    /// Returns the topology: the whole fabric with the states of its nodes.
    ///
    /// # Errors
    /// If the controller stands by, or does not answer.
    pub fn topology(&mut self) -> Result<proto::TopologyReply, ClientError> {
        let call = self.client.topology(with_timeout(proto::TopologyRequest {}));
        Ok(self.runtime.block_on(call)?.into_inner())
    }
}
