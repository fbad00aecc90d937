//! Advice on policies at a running leaf, with generator and emulated rack as processes over memif. `wedjat advise`
//! captures packets of the leaf and simulates its pool of workers under other policies. With `--apply` it changes the
//! leaf to the policy that it recommends. Under `policy = "auto(objective=p99)"` the leaf does this itself.
//!
//! The workers' times are long and the rate is low, so that a slow machine disturbs the queues little.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod processes;

use std::path::Path;

use serde_json::Value;
use wedjat::admin::{Access, Connection};
use wedjat::state::Snapshot;

use processes::*;

/// Starts a leaf with eight workers under this policy, and waits until it runs.
fn leaf(folder: &Path, sockets: &str, policy: &str) -> Process {
    let state = folder.join("state");
    let cpu = core_affinity::get_core_ids().unwrap()[0].id;
    let servers: String = (0..4)
        .map(|server| {
            let (ip, first) = (11 + server, 2 * server);
            format!("[[server]]\nip = '10.0.2.{ip}'\nworkers = '{first}-{}'\npool = 1\n", first + 1)
        })
        .collect();
    let text = format!(
        "[leaf]\nid = 1\nworker_timeout_ms = 0\ncores = [{cpu}]\nstate = '{}'\nseed = 7\n\
         [[port]]\ndevice = 'net_memif0,role=server,id=0,socket=@{sockets}-c'\nside = 'clients'\nip = '10.0.1.1/24'\n\
         [[port]]\ndevice = 'net_memif1,role=server,id=1,socket=@{sockets}-w'\nside = 'workers'\nip = '10.0.2.1/24'\n\
         [[pool]]\nid = 1\npolicy = '{policy}'\n{servers}",
        state.display()
    );
    let config = folder.join("leaf.toml");
    std::fs::write(&config, text).unwrap();
    let mut command = command("wedjat");
    command.args(["leaf", "--config"]).arg(config).args(LONG_TIMEOUT);
    let mut leaf = Process::start(command.args(["--stats", "-", "--", "--no-pci"]));
    wait("the leaf", || leaf.runs() && state.exists());
    leaf
}

/// Runs `wedjat advise` at the node, with short simulations and the options `more`. Returns its JSON.
fn advise(state: &Path, more: &[&str]) -> Value {
    let mut command = command("wedjat");
    command.arg("advise").arg("--node").arg(state);
    command.args(["--json", "--packets", "8000", "--longest", "300s", "--tasks", "20000"]);
    let output = command.args(["--policy", "random,jsq"]).args(more).output().unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
    json(&output)
}

/// Returns the policy of the node's pool, as its state file shows it.
fn policy(state: &Path) -> String {
    Snapshot::open(state).unwrap().pools[0].policy.clone()
}

/// Starts an emulated rack and a generator at a leaf. Returns both after the first answers.
fn rack_and_generator(state: &Path, sockets: &str) -> [Process; 2] {
    let device = |id, side| format!("net_memif0,role=client,id={id},socket=@{sockets}-{side}");
    let mut rack = command("wedjat-testbed");
    rack.args(["rack", "--servers", "10.0.2.11+4", "--workers", "8", "--device", &device(1, "w")]);
    let rack = Process::start(rack.args(["--", "--no-pci"]));
    // A load of 0.75: random queues are much longer than shortest ones.
    let mut generator = command("wedjat-pktgen");
    generator.args(["run", "--service", "exp(4ms)", "--rate", "1500", "--dst", "10.0.1.1"]);
    generator.args(["--duration", "3600s", "--no-floor", "--device", &device(0, "c")]);
    let generator = Process::start(generator.args(LONG_TIMEOUT).args(["--", "--no-pci"]));
    wait("answers", || counter(state, "replies") > 100);
    [rack, generator]
}

#[test]
fn running_leaf_is_measured_and_changed() {
    let folder = tempfile::tempdir().unwrap();
    let sockets = format!("wedjat-advise-{}", std::process::id());
    let leaf = leaf(folder.path(), &sockets, "random");
    let state = folder.path().join("state");
    let [rack, generator] = rack_and_generator(&state, &sockets);

    // Without --apply, nothing changes.
    let report = advise(&state, &[]);
    let conditions = &report["conditions"];
    assert_eq!(conditions["workers"], 8, "{report}");
    assert_eq!(conditions["dispatchers"], 1, "{report}");
    assert_eq!(conditions["assumed"], Value::Array(Vec::new()), "{report}");
    // A slow machine lengthens service times. The rack never shortens them.
    assert!(conditions["service_mean_us"].as_f64().unwrap() > 3500.0, "{report}");
    assert!(conditions["measured_tasks"].as_u64().unwrap() >= 1000, "{report}");
    assert_eq!((&report["running"], &report["applied"]), (&"random".into(), &Value::Null));
    assert_eq!(policy(&state), "random");

    // The model fits unless the machine stalls during a capture.
    let mut report = Value::Null;
    wait("a capture that the model fits", || {
        report = advise(&state, &["--apply"]);
        let is_trusted = report["advice"]["trusted"] == true;
        assert_eq!(report["applied"]["version"].is_u64(), is_trusted, "{report}");
        is_trusted
    });
    assert_eq!(report["advice"]["action"], "change", "{report}");
    let change = report["applied"]["change"].as_str().unwrap();
    assert!(change.starts_with("set-policy pool=1 policy=jsq"), "{report}");
    wait("the new policy in the state file", || policy(&state).starts_with("jsq"));

    let report = advise(&state, &["--apply"]);
    assert_eq!(report["advice"]["action"], "keep", "{report}");
    assert_eq!(report["applied"]["reason"], "the running policy is good enough", "{report}");

    // Runs the command with wrong options, and returns its message.
    let refused = |more: &[&str]| {
        let mut command = command("wedjat");
        let output = command.arg("advise").arg("--node").arg(&state).args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{more:?}");
        output_text(&output)
    };
    let text = refused(&["--pool", "2"]);
    assert!(text.contains("--pool 2: the node has no such pool; its pools are 1"), "{text}");
    let given = ["--workers", "8", "--load", "0.5", "--service", "exp(1us)", "--apply"];
    let text = refused(&given);
    assert!(text.contains("--apply: it changes a running node"), "{text}");

    generator.end();
    let account = leaf.stop();
    assert_eq!(account["balanced"], true, "{account}");
    rack.end();
}

/// Returns the state of the leaf's pool as `wedjat ctl show` prints it.
fn shown_pool(state: &Path) -> Value {
    let mut command = command("wedjat");
    let output = command.args(["ctl", "--json", "--node"]).arg(state).arg("show").output().unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
    json(&output)["pools"][0].clone()
}

/// Runs `wedjat ctl` with these arguments.
fn ctl(state: &Path, arguments: &[&str]) {
    let mut command = command("wedjat");
    let output = command.args(["ctl", "--node"]).arg(state).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
}

#[test]
fn leaf_under_auto_leaves_a_bad_policy() {
    let folder = tempfile::tempdir().unwrap();
    let sockets = format!("wedjat-auto-{}", std::process::id());
    let leaf = leaf(folder.path(), &sockets, "auto(objective=p99)");
    let state = folder.path().join("state");
    let [rack, generator] = rack_and_generator(&state, &sockets);
    let pool = shown_pool(&state);
    assert_eq!((&pool["auto"]["objective"], pool["policy"].as_str()), (&"p99".into(), Some("eft")));

    // `eft` is good here. Under `random` the 99th percentile is much longer.
    // A connection of its own for each request: the node closes an idle one.
    let connect = || Connection::open(&Access::State(state.clone())).unwrap();
    connect().change(&["switch-policy pool=1 policy=random".parse().unwrap()], None).unwrap();
    // The state file, not `wedjat ctl show`: a command every few milliseconds leaves the choosing thread no CPU time.
    wait("a better policy than random", || policy(&state) != "random");
    wait("the decision", || {
        let pool = &Snapshot::open(&state).unwrap().pools[0];
        pool.auto.as_ref().is_some_and(|auto| auto.switches > 0)
    });
    let pool = shown_pool(&state);
    let decision = pool["auto"]["decision"].as_str().unwrap();
    assert!(decision.contains("instead of random"), "{pool}");
    assert_eq!(pool["auto"]["objective"], "p99", "{pool}");

    // The configuration file still has the `auto` policy, so that a reload changes nothing.
    let reload = connect().reload(false).unwrap();
    assert!(reload.changes.is_empty(), "{:?}", reload.changes);
    let after = shown_pool(&state);
    assert_eq!(after["auto"]["objective"], "p99", "{after}");
    assert_ne!(after["policy"], "random", "{after}");

    // The client's capture ends a capture by the node. `--apply` leaves the choice to the node.
    let report = advise(&state, &["--apply"]);
    let reason = report["applied"]["reason"].as_str().unwrap();
    assert!(reason.contains("the node chooses this pool's policy itself"), "{report}");

    // A fixed policy ends the choice, and `auto` begins it again.
    ctl(&state, &["pool", "policy", "1", "jsq"]);
    let pool = shown_pool(&state);
    assert!(
        pool["auto"].is_null() && pool["policy"].as_str().unwrap().starts_with("jsq"),
        "{pool}"
    );
    ctl(&state, &["pool", "policy", "1", "auto(mean)"]);
    let pool = shown_pool(&state);
    assert_eq!((&pool["auto"]["objective"], &pool["policy"]), (&"mean".into(), &"eft".into()));

    generator.end();
    let account = leaf.stop();
    assert_eq!(account["balanced"], true, "{account}");
    rack.end();
}
