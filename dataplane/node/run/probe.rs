//! Properties of a node's devices, read without running the node, for `wedjat doctor --probe`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use wedjat_desired::config::NodeConfig;
use wedjat_dpdk::DeviceProperties;

use super::launch::Runtime;
use super::{LaunchError, Options};

/// Opens the devices of a node as its start would, without waiting for memif servers, and closes them. Returns the
/// properties of each, in the order of the ports. `task_port` is the UDP port of tasks at a node
/// whose devices steer replies to the core of their task; `None` for other nodes.
///
/// # Errors
/// If a CPU, EAL, the mempool or a device is not available, or a driver does not describe its device.
pub fn probe(
    config: NodeConfig<'_>,
    eal: &[String],
    task_port: Option<u16>,
) -> Result<Vec<DeviceProperties>, LaunchError> {
    let options =
        Options { eal: eal.to_vec(), peer_timeout: Some(Duration::ZERO), ..Options::default() };
    let stop = Arc::new(AtomicBool::new(false));
    let (runtime, ()) = Runtime::start(config, &options, &stop, || Ok(()))?;
    // The seed selects the steering key, which the properties do not show.
    let devices = runtime.open_devices(0, task_port.map(|port| (port, 0)))?;
    // `open_devices` returns `None` after a stop request, which never comes here.
    let devices = devices.map_or_else(Vec::new, |opened| opened.devices);
    Ok(devices.iter().map(|device| device.properties()).collect::<Result<_, _>>()?)
}
