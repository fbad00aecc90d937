//! Agent whose worker threads send their replies themselves, on devices other than memif: virtio-user towards
//! vhost. An agent gives the tasks of its host to workers, here two threads of its process. Usually its dispatcher (the
//! polling core) sends the replies. Processes share the CPUs, so the test asserts nothing about time.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod processes;

use std::path::Path;

use serde_json::Value;

use processes::*;

/// Runs a generator and an agent on these devices until the agent has sent more than 150 replies, then stops both.
/// Returns the generator's report and the agent's account. Checks that ledgers balance, answers are right, and the two
/// worker threads sent every reply themselves. `more_queues` is the number of receive queues that the generator polls
/// in addition to its first.
fn run(folder: &Path, agent: &str, generator: &str, more_queues: &str) -> (Value, Value) {
    // With `must`, the agent starts only if each worker thread has a transmit queue of its own.
    let config = agent_config(folder, agent, "must");
    let mut command_line = command("wedjat-testbed");
    command_line.args(["agent", "--app", "spin", "--stats", "-", "--config"]).arg(&config);
    let mut agent = Process::start(command_line.args(LONG_TIMEOUT).args(["--", "--no-pci"]));
    // Long tasks, so that both threads get some.
    let mut load = processes::generator("fixed(500us)", "100", "10.0.1.11", "300s", generator);
    let load = Process::start(load.args(["--more-rx", more_queues, "--", "--no-pci"]));
    wait("answers", || counter(&folder.join("state"), "replies") > 150);
    let output = load.end();
    assert!(agent.runs());
    let (report, account) = (verified(&output), agent.stop());
    let checks = (&account["balanced"], &account["mbufs_leaked"], &account["senders"]);
    assert_eq!(checks, (&true.into(), &0.into(), &2.into()), "{account}");
    let sent = ["/replies", "/scheduled", "/tx_packets"].map(|key| count(&account, key));
    // Each task has one reply, and each reply is one packet.
    assert!(sent[0] > 0 && sent == [sent[0]; 3], "{account}");
    (report, account)
}

// promise: agent.1
#[test]
fn over_virtio_threads_send_every_answer_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("vhost").display().to_string();
    let agent = format!("net_virtio_user0,path={socket},queues=3,queue_size=256,server=1");
    // Three queue pairs: one for the dispatcher, and one for each worker thread. The generator polls two more.
    let generator = format!("net_vhost0,iface={socket},queues=3,client=1");
    let (report, account) = run(folder.path(), &agent, &generator, "2");
    assert_eq!(count(&report, "/answered"), count(&account, "/replies"), "{report}\n{account}");
}
