//! `wedjat controller`: runs the controller of a fabric, which keeps the desired state of spines, leaves and agents.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use clap::Args;
use wedjat::config::ControllerConfig;
use wedjat::controller::Controller;

use super::logs::Logs;
use super::{Outcome, signals};

/// Help text below the options.
pub const EXAMPLE: &str = "Example:
  wedjat controller --config controller.toml &
  export WEDJAT_CONTROLLER=/var/lib/wedjat/fabric
  wedjat ctl add-leaf 1 10.0.2.1 && wedjat ctl add-server 10.0.2.11 --leaf 1 --workers 0-31
  wedjat ctl pool create --workers 32 --policy horus && wedjat ctl topology
Exit status: 0 after an orderly end, 1 when it does not start or its store is damaged.";

/// Interval between checks for a signal, the end of the duration, and a failure of the controller's thread.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Arguments of `wedjat controller`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Send nodes the state of the store, even if they have a newer version; for use after the store was
    /// restored from a copy
    #[arg(long)]
    restore: bool,
    /// Stop after this time, for example 5s or 500ms.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    pub logs: Logs,
}

/// Runs the controller until a signal or the end of its duration.
pub fn run(arguments: &Arguments) -> Outcome {
    let config = ControllerConfig::load(&arguments.config)?;
    let stop = signals::stop_on_signals()?;
    let mut controller = if arguments.restore {
        log::warn!(
            "nodes accept an older state from the store; restart without --restore once all of them follow"
        );
        Controller::restore(&config)?
    } else {
        Controller::start(&config)?
    };
    log::info!("controller {} runs", config.id);
    if let Some(socket) = &config.socket {
        log::info!("listens at unix:{}", socket.display());
    }
    if let Some(listen) = controller.listen {
        log::info!("listens at {listen}");
    }
    let began = Instant::now();
    // Acquire pairs with the store of the signal handler.
    while !stop.load(Acquire)
        && arguments.duration.is_none_or(|duration| began.elapsed() < duration)
    {
        if let Some(error) = controller.ended() {
            return Err(error.into());
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    drop(controller); // stops its thread and waits for it
    Ok(std::process::ExitCode::SUCCESS)
}
