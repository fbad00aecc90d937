//! Two spines and two leaves as processes in real time, and the controller that they follow. A controller stores the
//! desired state (pools, servers, workers) and sends it to the nodes, whose own configurations name no members.
//!
//! A spine schedules a pool's tasks over leaves (racks), and a leaf over its workers. Each pool has a service
//! address, which its spine announces to clients. A second spine stands by for it. Signals are messages about a
//! rack's load from leaves to their spine, and keep-alives in both directions.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use super::family::Family;
use super::process::ChildProcess;
use super::switch::*;
use super::timeouts::*;

/// Runs the fabric over this family of addresses. A spine and then the controller die. Checks that the standby takes
/// over, and that every task is answered and counted.
pub fn survive_spine_and_controller_loss(family: Family) {
    let home = Home::followed(family);
    let mut command = Command::new(WEDJAT);
    command
        .args(["controller", "--duration", LIFETIME, "--config"])
        .arg(home.path("controller.toml"));
    let log = fs::File::create(home.path("controller.log")).unwrap();
    let controller = ChildProcess::start(command.stdout(Stdio::null()).stderr(log));
    // Runs `wedjat ctl` for the controller.
    let ctl = |arguments: &[&str]| {
        let mut command = Command::new(WEDJAT);
        command.env("WEDJAT_CONTROLLER", home.path("fabric"));
        command.args(["ctl", "--json"]).args(arguments.iter().map(|text| family.text(text)));
        command.output().unwrap()
    };
    // The same; checks that it succeeds, and returns its JSON.
    let ctl_json = |arguments: &[&str]| {
        let output = ctl(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    wait_until("the controller leads", || ctl(&["topology"]).status.success());
    for (spine, ip) in [("90", "10.0.3.1"), ("91", "10.0.3.2")] {
        ctl_json(&["add-spine", spine, ip]);
    }
    for leaf in 0..2 {
        let (id, mac) = ((leaf + 1).to_string(), server_mac(leaf).to_string());
        ctl_json(&["add-leaf", &id, &format!("10.0.3.{}", 11 + leaf)]);
        let ip = format!("10.0.4.{}", 11 + leaf);
        ctl_json(&["add-server", &ip, "--leaf", &id, "--workers", "0-3", "--mac", &mac]);
    }
    let spine = home.start("spine", "spine90");
    let standby = home.start("spine", "spine91");
    let leaves = [home.start("leaf", "leaf1"), home.start("leaf", "leaf2")];
    let mut switch = Switch::open(&home, &ENDS);
    let pool = ["pool", "create", "1", "--workers", "8", "--policy", "horus"];
    ctl_json(&[&pool[..], &["--spines", "1", "--address", "10.0.1.200"]].concat());
    // Returns true if this spine has both racks of the pool, according to the controller.
    let linked = |spine: u64| {
        let topology = ctl_json(&["topology"]);
        let racks = topology["pools"][0]["racks"].as_array().unwrap().clone();
        racks.len() == 2 && racks.iter().all(|rack| rack["spine"] == spine)
    };
    assert!(linked(90));
    // Returns the number of members of a node's pool.
    let members = |home: &Home, node: &str| {
        let members = home.state(node)["pools"][0]["members"].clone();
        members.as_array().map_or(0, Vec::len)
    };
    switch.poll_until("all nodes have their members", || {
        let leaves = ["leaf1", "leaf2"]
            .map(|leaf| (members(&home, leaf), home.counter(leaf, "signals") > 0));
        leaves == [(4, true); 2]
            && members(&home, "spine90") == 2
            && home.counter("spine90", "signals") > 10
    });
    // Sends these tasks and waits until all are answered.
    switch.ask(0..500);

    // One spine dies. Without a command, the controller links the racks to the idle standby, which then announces the
    // address.
    drop(spine.end("-KILL"));
    // The switch discards frames to the dead spine from now on.
    switch.wires.dead.extend([CLIENTS[0], DOWN[0]]);
    let died = Instant::now();
    // `serving` is the index of the spine that last announced the address.
    while switch.serving == 0 {
        switch.poll();
        assert!(died.elapsed() < TIMEOUT, "the standby has not announced the address");
    }
    eprintln!("the standby has the address after {:?}", died.elapsed());
    switch.poll_until("the leaves are linked to the standby", || {
        linked(91) && home.counter("spine91", "signals") > 10
    });
    switch.ask(500..1000);

    // The fabric continues without the controller.
    drop(controller.end("-KILL"));
    switch.ask(1000..1500);
    let (standby, leaves) = (standby.account(), leaves.map(ChildProcess::account));
    // The standby scheduled the tasks 500 to 1499, and the leaves all 1500 tasks.
    assert_eq!(standby["scheduled"], 1000, "{standby}");
    let scheduled: u64 = leaves.iter().map(|leaf| leaf["scheduled"].as_u64().unwrap()).sum();
    assert_eq!(scheduled, 1500, "{leaves:?}");
}
