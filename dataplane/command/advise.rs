//! `wedjat advise`: measures a pool of a running node, simulates it under all policies, and recommends one.
//!
//! The measurement is a capture of the node's packets by its tap (packet recorder). The simulation is that of
//! `wedjat-testbed advise`. With `--apply`, the node gets the recommended policy.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use wedjat::admin::generated::{Auto, Pool, ShowReply, StartTapRequest};
use wedjat::admin::{Connection, packets};
use wedjat::advice::{CaptureFile, SNAPLEN, lost_too_many, node_pool};
use wedjat::control::Change;
use wedjat::state::table::AutoSnapshot;
use wedjat_sim::advise::decision::Action;
use wedjat_sim::advise::node::NodePool;
use wedjat_sim::advise::report::Report;
use wedjat_sim::advise::{self, page_of, write_page};

use super::ctl::access_to;
use super::{Outcome, print};

/// Help text below the options.
pub const EXAMPLE: &str = "Examples:
  wedjat advise
  wedjat advise --node /dev/shm/wedjat-leaf1 --pool 2 --objective mean
  wedjat advise --objective 'slo(class=1, us=400)' --apply
  wedjat advise --capture leaf.pcap --workers 32
  wedjat advise --workers 32 --load .8 --service 'exp(100us)' --delay 10us
Without a log, a capture, or workers, load and service, it captures packets of the running node, which needs the same rights as
`wedjat ctl tap`, and a reply's extension with the service time. Nothing else changes at the node, unless --apply is given.
Exit status: 0, or 1 if no policy is stable, or if something failed.";

/// Interval between requests that ask the node if the capture has ended.
const ASK_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum number of packets to capture.
const PACKETS_MIN: u64 = 4000;
/// Reason why `--apply` changes no pool whose node chooses the policy.
const AUTO_APPLIES: &str =
    "the node chooses this pool's policy itself; fix it by `wedjat ctl pool policy`";

/// Arguments of `wedjat advise`.
#[derive(Debug, Args)]
#[group(skip)] // its name is that of the flattened arguments
pub struct Arguments {
    #[command(flatten)]
    advice: advise::Arguments,
    /// Number of packets to capture; a task of a leaf takes four
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(PACKETS_MIN..))]
    packets: u64,
    /// Longest time of the capture
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    longest: Duration,
    /// Give the pool the recommended policy, if the gain exceeds 5% and the model fits the measurement
    #[arg(long)]
    apply: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command. Captures packets of a node only if the options do not give all conditions.
pub fn run(arguments: &Arguments) -> Outcome {
    let mut advice = arguments.advice.clone();
    let html = page_of(&advice)?;
    if !advice.conditions.needs_node() {
        if arguments.apply {
            return Err("--apply: it changes a running node, but other options give the conditions; omit them".into());
        }
        let report = advise::advise(&advice)?;
        return finish(arguments, &report, html.as_deref(), (None, None));
    }
    // Only the local socket: the capture is a file on this machine, and needs no certificates.
    let state = access_to(advice.conditions.node.as_deref(), None, [&None, &None, &None])?;
    let mut node = Connection::open(&state)?;
    let shown = node.show()?;
    let pool = select(&shown, advice.conditions.pool)?;
    let auto = pool.auto.clone();
    let pool = node_pool(&shown, pool)?;
    let file = CaptureFile::new("advise");
    capture(arguments, &mut node, &file)?;
    advice.conditions.pool = Some(pool.id);
    advice.conditions.running_node = Some(pool.clone());
    advice.conditions.capture = Some(file.path().to_owned());
    let report = advise::advise(&advice)?;
    drop(file);
    let auto = auto.as_ref();
    let applied = match arguments.apply {
        true if auto.is_some() => Some(Applied::Unchanged(AUTO_APPLIES.to_owned())),
        true => {
            let applied = apply(&report, &pool, shown.version, &mut node);
            // The report is printed also if the node refuses the policy.
            Some(applied.unwrap_or_else(|error| Applied::Failed(error.to_string())))
        }
        false => None,
    };
    finish(arguments, &report, html.as_deref(), (applied, auto))
}

/// Result of `--apply`.
enum Applied {
    /// The node has the policy since this version of its state, by this change.
    Changed(u64, Change),
    /// Reason why nothing was changed.
    Unchanged(String),
    /// Reason why the change failed.
    Failed(String),
}

/// Prints the report, and writes its page to the file `html`. `applied` is `None` without `--apply`, `auto` if the node
/// does not choose the pool's policy. The exit code says if a policy is stable.
///
/// # Errors
/// If the change has failed, after the report. Also if the report cannot be written.
fn finish(
    arguments: &Arguments,
    report: &Report,
    html: Option<&Path>,
    (applied, auto): (Option<Applied>, Option<&Auto>),
) -> Outcome {
    write_page(report, html)?;
    let failure = match &applied {
        Some(Applied::Failed(reason)) => Some(reason.clone()),
        _ => None,
    };
    let text = if arguments.json {
        let mut json: Value = serde_json::from_str(&report.json()?)?;
        if let Some(applied) = &applied {
            json["applied"] = match applied {
                Applied::Changed(version, change) => {
                    json!({ "version": version, "change": change.to_string() })
                }
                Applied::Unchanged(reason) | Applied::Failed(reason) => {
                    json!({ "version": null, "reason": reason })
                }
            };
        }
        json["auto"] = serde_json::to_value(auto)?;
        format!("{}\n", serde_json::to_string_pretty(&json)?)
    } else {
        let applied = applied.map_or_else(String::new, |applied| match applied {
            Applied::Changed(version, change) => format!("Applied: version {version}: {change}\n"),
            Applied::Unchanged(reason) | Applied::Failed(reason) => {
                format!("Not applied: {reason}\n")
            }
        });
        let auto = auto.cloned().map_or_else(String::new, |auto| {
            format!("The pool is under {}.\n", AutoSnapshot::from(auto).text())
        });
        report.text() + &auto + &applied
    };
    print(&text)?;
    if let Some(reason) = failure {
        return Err(reason.into());
    }
    let is_stable = report.advice.best.is_some();
    Ok(if is_stable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Gives the pool the recommended policy, if it has a gain and the model predicts the running policy well. `version` is
/// that of the node's state before the capture: the node refuses the change if another one came between.
fn apply(
    report: &Report,
    pool: &NodePool,
    version: u64,
    node: &mut Connection,
) -> Result<Applied, Box<dyn std::error::Error>> {
    let unchanged = |reason: &str| Ok(Applied::Unchanged(reason.to_owned()));
    let policy = match (report.advice.action, report.advised()) {
        (Action::Change | Action::Choose, Some(best)) => &report.policies[best],
        (Action::None, _) | (_, None) => return unchanged("no policy is stable"),
        (Action::Keep, _) => return unchanged("the running policy is good enough"),
    };
    if report.fit.as_ref().is_none_or(|fit| !fit.fits) {
        return unchanged(
            "the model does not fit the measurement of the running policy; change it by `wedjat ctl pool policy`",
        );
    }
    let change: Change = format!("set-policy pool={} policy={policy}", pool.id).parse()?;
    let version = node.change(std::slice::from_ref(&change), Some(version))?;
    Ok(Applied::Changed(version, change))
}

/// Returns the pool with this id, or the only one.
fn select(shown: &ShowReply, id: Option<u32>) -> Result<&Pool, String> {
    let ids = || shown.pools.iter().map(|pool| pool.id.to_string()).collect::<Vec<_>>().join(", ");
    match (id, &shown.pools[..]) {
        (_, []) => Err("the node has no pool".to_owned()),
        (None, [pool]) => Ok(pool),
        (None, _) => Err(format!("the node has the pools {}; select one by --pool", ids())),
        (Some(id), pools) => pools.iter().find(|pool| pool.id == id).ok_or_else(|| {
            format!("--pool {id}: the node has no such pool; its pools are {}", ids())
        }),
    }
}

/// Lets the node write packets to `file`, until it has the requested number or the longest time is over.
///
/// # Errors
/// If the node refuses, does not answer, or lost too many packets for lack of room. Also for a path that is not UTF-8.
fn capture(
    arguments: &Arguments,
    node: &mut Connection,
    file: &CaptureFile,
) -> Result<(), Box<dyn std::error::Error>> {
    let name = file
        .path()
        .to_str()
        .ok_or("the path of the folder for temporary files is not UTF-8; set TMPDIR")?;
    // The node ends the tap and removes its file if this process ends first, for instance by SIGINT.
    let call = node.capture(StartTapRequest {
        file: name.to_owned(),
        port: String::new(),
        snaplen: Some(SNAPLEN as u32),
        packets: Some(arguments.packets),
    })?;
    let began = Instant::now();
    while began.elapsed() < arguments.longest && node.show()?.tap.is_some_and(|tap| !tap.ended) {
        std::thread::sleep(ASK_INTERVAL);
    }
    let tap = node.stop_tap()?;
    drop(call);
    if lost_too_many(tap.written, tap.lost) {
        return Err(format!(
            "the node captured {} and had no room for {} more; {}",
            packets(tap.written),
            tap.lost,
            remedy(arguments.packets)
        )
        .into());
    }
    Ok(())
}

/// Returns the advice after a capture of at most this number of packets that lost too many.
fn remedy(packets: u64) -> String {
    match packets {
        ..=PACKETS_MIN => "try again while the node has fewer tasks".to_owned(),
        _ => format!("give --packets {}", (packets / 4).max(PACKETS_MIN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_after_losses_names_fewer_packets() {
        assert_eq!(remedy(100_000), "give --packets 25000");
        assert_eq!(remedy(4001), "give --packets 4000");
        assert!(!remedy(4000).contains("--packets"));
    }
}
