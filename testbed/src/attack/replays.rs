//! Endless replays of packets to a leaf or agent process, by a DPDK device that reads a capture: storms, and
//! forged acknowledgements.

use std::process::Command;
use std::time::{Duration, Instant};

use wedjat::io::pcap::write_frames;
use wedjat::wire::arp::{Operation, Packet};
use wedjat::wire::ether::Mac;
use wedjat::wire::task::{Header, UDP_PORT};
use wedjat::wire::udp::Flow;

use super::rigs::memory::{CLIENTS, LEAF_IPS, LEAF_MACS, POOL, Setup, WORKERS, text};
use super::rigs::packets;
use super::rigs::processes::{Job, Site, check_alive, check_end};
use super::storm::Forger;
use super::{Account, Attack, Budget, Failure, attack_table};
use crate::demo::leaf::NodeProcess;

/// Number of packets of a capture. Each uses a buffer of the node during the whole run.
const FRAMES: usize = 4_000;
/// Maximum number of messages per second and worker from an agent to its leaf, however often the leaf asks:
/// the agent sends one per 2 ms, and a tenth is tolerance.
const MESSAGES: f64 = 550.0;
/// The attacked agent, at 10.0.2.11.
const AGENT_IP: u32 = 0x0A00_020B;
const AGENT_MAC: Mac = Mac([2, 0, 0, 0, 2, 0x0B]);
const AGENT_WORKERS: u16 = 4;

/// The attacks of this file.
pub static ATTACKS: &[Attack] = attack_table! {
    "storm-to-process" Processes => storm, "all kinds of packets from both sides, as fast as a leaf process takes them";
    "storm-to-agent" Processes => storm_to_agent,
        "all kinds of packets, as fast as an agent process with workers takes them";
    "forged-acknowledgements" Processes => acknowledgements,
        "WORKER_ID_ACK for each worker of an agent, which ask for a KEEP_ALIVE every 200 us, with all sequence numbers";
};

/// Writes a capture of the frames that are not empty. Returns its path. A [`Forger`] may cut a frame to no bytes.
fn capture(
    site: &Site,
    name: &str,
    frames: impl Iterator<Item = Vec<u8>>,
) -> Result<String, Failure> {
    let path = site.path(name);
    let frames: Vec<_> = frames.filter(|frame| !frame.is_empty()).collect();
    write_frames(&path, &frames)?;
    Ok(path.display().to_string())
}

/// Returns `condition`, or an error if the node has ended, so that a wait for a dead node fails at once.
fn unless_ended(node: &mut NodeProcess, condition: bool) -> Result<bool, Failure> {
    node.check()?;
    Ok(condition)
}

/// Replays forged packets from both sides to a leaf process, which must survive and end with a balanced ledger.
fn storm(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    for policy in ["horus", "jbsq(k=2)"] {
        let site = Site::new()?;
        let mut forger = Forger::new(budget.seed);
        let mut device = |side: usize| -> Result<String, Failure> {
            let packets = std::iter::repeat_with(|| forger.packet(side)).take(FRAMES);
            let file = capture(&site, &format!("side{side}.pcap"), packets)?;
            Ok(format!("net_pcap{side},rx_pcap={file},infinite_rx=1"))
        };
        let devices = [device(CLIENTS)?, device(WORKERS)?];
        let setup = Setup { policy, seed: budget.seed, ..Setup::default() };
        let state = format!("state = '{}'", site.state().display());
        let config = text(&setup, [&devices[0], &devices[1]], &state);
        let mut leaf = site.start(Command::new(site.binary()), "leaf", &config)?;
        site.until("packets", || unless_ended(&mut leaf, site.counter("rx_packets")? > 0))?;
        std::thread::sleep(Duration::from_secs_f64(budget.seconds));
        account.tried("packets", site.counter("rx_packets")?);
        if check_alive(account, &format!("{policy}: the leaf lives"), &mut leaf) {
            check_end(account, policy, leaf);
        }
    }
    Ok(())
}

/// Returns the configuration of an agent on a device that replays a capture. The agent's name is the path of its
/// region. `leaf` is empty, or the line that names the agent's leaf.
fn agent_config(site: &Site, capture: &str, leaf: &str) -> String {
    format!(
        "[agent]\nname = '{}'\ncore = 0\nstate = '{}'\nseed = 7\n{leaf}\
         [[port]]\ndevice = 'net_pcap0,rx_pcap={capture},infinite_rx=1'\nip = '10.0.2.11/24'\nmac = '{AGENT_MAC}'\n\
         [[pool]]\nid = {POOL}\npolicy = 'jbsq(k=2)'\nworkers = '0-{}'\n",
        site.region().display(),
        site.state().display(),
        AGENT_WORKERS - 1
    )
}

/// Starts a process with [`AGENT_WORKERS`] workers that attach to the agent.
fn start_workers(site: &Site) -> Result<Job, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", "--app", "echo", "--workers", &AGENT_WORKERS.to_string(), "--attach"]);
    Job::start(command.arg(site.region()), &site.path("workers"))
}

/// Returns a packet that was forged for a leaf's port, so that agents need no forger of their own. The agent's MAC
/// address replaces the leaf's as its destination. Its IP addresses stay.
fn packet_to_agent(forger: &mut Forger) -> Vec<u8> {
    let mut frame = forger.packet(WORKERS);
    if frame.starts_with(&LEAF_MACS[WORKERS].0) {
        frame[0..6].copy_from_slice(&AGENT_MAC.0);
    }
    frame
}

/// Replays tasks and forged packets to an agent process with workers. The agent must survive and end with a balanced
/// ledger.
fn storm_to_agent(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    let site = Site::new()?;
    let mut forger = Forger::new(budget.seed);
    let tasks = (0..FRAMES).map(|seq| match seq % 2 {
        0 => task_to_agent(seq as u16),
        _ => packet_to_agent(&mut forger),
    });
    let file = capture(&site, "agent.pcap", tasks)?;
    let mut agent =
        site.start(Command::new(site.binary()), "agent", &agent_config(&site, &file, ""))?;
    site.until("the region", || unless_ended(&mut agent, site.region().exists()))?;
    let workers = start_workers(&site)?;
    site.until("replies", || unless_ended(&mut agent, site.counter("replies")? > 0))?;
    std::thread::sleep(Duration::from_secs_f64(budget.seconds));
    account.tried("packets", site.counter("rx_packets")?);
    account.figure("replies", site.counter("replies")? as f64);
    drop(workers);
    if check_alive(account, "the agent lives", &mut agent) {
        check_end(account, "the agent", agent);
    }
    Ok(())
}

/// Returns a valid task for the agent.
fn task_to_agent(seq: u16) -> Vec<u8> {
    let flow = Flow {
        src_mac: LEAF_MACS[WORKERS],
        dst_mac: AGENT_MAC,
        src: LEAF_IPS[WORKERS],
        dst: AGENT_IP,
        src_port: packets::CLIENT_PORT,
        dst_port: UDP_PORT,
    };
    packets::datagram(&flow, &Header::new_task(POOL, seq), 1, &[0; 16])
}

/// Replays forged acknowledgements to an agent, and checks that they do not raise the rate of its messages above
/// [`MESSAGES`].
fn acknowledgements(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    let site = Site::new()?;
    // First an ARP reply with the leaf's MAC address, then acknowledgements. An agent sends five messages per timeout
    // and worker. A timeout of a millisecond is below the agent's minimum.
    let answer = Packet {
        operation: Operation::Reply,
        sender_mac: LEAF_MACS[WORKERS],
        sender: LEAF_IPS[WORKERS],
        target_mac: AGENT_MAC,
        target: AGENT_IP,
    };
    // Id of the forged leaf, and the timeout.
    let (leaf, timeout_ms) = (9, 1);
    // An acknowledgement counts only with the sequence number of the worker's open registration. These numbers begin
    // at 1, so one of 0 to 63 matches.
    let forged = (0..64 * AGENT_WORKERS).map(|index| {
        let registration = Header::worker_id(POOL, index % AGENT_WORKERS, 0, index / AGENT_WORKERS);
        let flow = Flow {
            src_mac: LEAF_MACS[WORKERS],
            dst_mac: AGENT_MAC,
            src: LEAF_IPS[WORKERS],
            dst: AGENT_IP,
            src_port: UDP_PORT,
            dst_port: UDP_PORT,
        };
        packets::datagram(&flow, &registration.acknowledged_by(leaf, timeout_ms), 0, &[])
    });
    let frames = [packets::arp(&answer, AGENT_MAC)].into_iter().chain(forged);
    let file = capture(&site, "acks.pcap", frames)?;
    let config = agent_config(&site, &file, "leaf = '10.0.2.1'\n");
    let mut agent = site.start(Command::new(site.binary()), "agent", &config)?;
    site.until("the region", || unless_ended(&mut agent, site.region().exists()))?;
    let _workers = start_workers(&site)?;
    // The measurement starts when the agent sends messages of its own.
    let before = site.counter("originated")?;
    site.until("messages", || Ok(site.counter("originated")? > before + 8))?;
    let (began, before) = (Instant::now(), site.counter("originated")?);
    std::thread::sleep(Duration::from_secs_f64(budget.seconds));
    let sent = site.counter("originated")? - before;
    let rate = sent as f64 / began.elapsed().as_secs_f64();
    account.tried("forged acknowledgements", site.counter("rx_packets")?);
    account.figure("messages a second", rate);
    account.check(
        format!("the agent sends at most {MESSAGES} messages a second for each worker"),
        rate <= MESSAGES * f64::from(AGENT_WORKERS),
        format!("{rate:.0} for {AGENT_WORKERS} workers"),
    );
    if check_alive(account, "the agent lives", &mut agent) {
        check_end(account, "the agent", agent);
    }
    Ok(())
}
