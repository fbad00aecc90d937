//! Tests of the scheduler as a library, over IPv6: the cases of [`super`] (tests/embed.rs, over IPv4) again, with the
//! same checks. An application passes packets to a [`Context`], the part of one core, and gets a verdict for each.
//!
//! The network has a client, a leaf with a port for clients and a port for workers, and two servers of four workers
//! each. The MAC address of the second server is unknown at first.

use super::*;
use std::net::Ipv6Addr;
use wedjat::embed::RewriteV6;
use wedjat::wire::{ipv6, ndp};

/// Addresses of the leaf's ports, the one to clients first.
const LEAF: [u128; 2] = [address(1, 1), address(2, 1)];
const V6_CLIENT: u128 = address(1, 2);
/// Addresses of the servers: workers 10 to 13, and 14 to 17.
const V6_SERVERS: [u128; 2] = [address(2, 0xB), address(2, 0xC)];
/// MAC address of the second server.
const SECOND_MAC: Mac = Mac([2, 0, 0, 0, 2, 12]);
/// Offset of the IP header.
const IP: usize = ether::LEN;

/// Returns the address fd00:NETWORK::HOST.
const fn address(network: u128, host: u128) -> u128 {
    0xFD00 << 112 | network << 96 | host
}

/// Returns the configuration of the network above with this policy, like [`text()`] for IPv4.
fn text_v6(policy: &str) -> String {
    let name = Ipv6Addr::from_bits;
    format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\nconnections = 64\n\
         [[port]]\ndevice = 'c'\nside = 'clients'\nip = '{}/64'\n\
         [[port]]\ndevice = 'w'\nside = 'workers'\nip = '{}/64'\nmac = '{}'\n\
         [[pool]]\nid = {POOL}\npolicy = '{policy}'\n\
         [[server]]\nip = '{}'\nmac = '{SERVER_MAC}'\nworkers = '10-13'\npool = {POOL}\n\
         [[server]]\nip = '{}'\nworkers = '14-17'\npool = {POOL}\n",
        name(LEAF[0]),
        name(LEAF[1]),
        LEAF_MACS[1],
        name(V6_SERVERS[0]),
        name(V6_SERVERS[1]),
    )
}

/// Returns the context of the only core of a new scheduler.
fn context_v6(policy: &str) -> Context {
    let options = Options { ticks_hz: TICKS_HZ, macs: &LEAF_MACS };
    Scheduler::from_toml(&text_v6(policy), &options).unwrap().context(0).unwrap()
}

/// Returns a frame of this flow: a task header, then nine zero bytes as the data of the task or the reply.
fn frame_v6(flow: &udp::Flow<u128>, header: &Header) -> Vec<u8> {
    let len = header.len() + 9;
    let mut frame = vec![0; udp::PAYLOAD_V6 + len];
    header.emit(&mut frame[udp::PAYLOAD_V6..]);
    flow.emit_v6(&mut frame, len);
    frame
}

/// Returns a client's packet of a task.
fn task_v6(header: Header) -> Vec<u8> {
    let flow = udp::Flow {
        src_mac: CLIENT_MAC,
        dst_mac: LEAF_MACS[0],
        src: V6_CLIENT,
        dst: LEAF[0],
        src_port: 40_000,
        dst_port: 1234,
    };
    frame_v6(&flow, &header)
}

/// Returns a worker's reply to task 1 with the queue length `qlen`.
fn reply_v6(worker: u16, qlen: u16) -> Vec<u8> {
    let code = if qlen == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
    reply_of(Header { code, src: worker, dst: 0, qlen, ..Header::new_task(POOL, 1) })
}

/// Returns the reply with this header to the client. The source address is that of the worker's server; the source MAC
/// address is always the first server's.
fn reply_of(header: Header) -> Vec<u8> {
    let flow = udp::Flow {
        src_mac: SERVER_MAC,
        dst_mac: LEAF_MACS[1],
        src: V6_SERVERS[usize::from(header.src - FIRST_WORKER) / 4],
        dst: V6_CLIENT,
        src_port: 1234,
        dst_port: 40_000,
    };
    frame_v6(&flow, &header)
}

/// Returns the client's neighbour solicitation for an address (IPv6's question for a MAC address).
fn who_is_v6(target: u128) -> Vec<u8> {
    let (question, to) = ndp::Packet::question(CLIENT_MAC, V6_CLIENT, target, None);
    let mut frame = vec![0; ndp::FRAME_LEN];
    question.emit(&mut frame, to, false);
    frame
}

/// Returns the second server's answer to the leaf's neighbour solicitation.
fn second_server_answer() -> Vec<u8> {
    let (operation, target) = (ndp::Operation::Advertisement, V6_SERVERS[1]);
    let mac = Some(SECOND_MAC);
    let answer = ndp::Packet { operation, src: target, dst: LEAF[1], target, mac };
    let mut frame = vec![0; ndp::FRAME_LEN];
    answer.emit(&mut frame, LEAF_MACS[1], false);
    frame
}

/// Returns a random packet with the port that receives it, like [`any_packet`]: tasks, replies and solicitations, some
/// of them damaged.
fn any_packet_v6(dice: &mut Dice, seq: u16) -> (usize, Vec<u8>) {
    let header = Header {
        extended: dice.below(3) == 0,
        more: dice.below(6) == 0,
        ..Header::new_task(POOL, seq % 40)
    };
    let (port, packet) = match dice.below(10) {
        0..5 => (0, task_v6(header)),
        5 => (0, task_v6(Header { code: Code::TaskContinuation, ..header })),
        6..9 => (1, reply_v6(FIRST_WORKER + dice.below(8) as u16, dice.below(3) as u16)),
        _ => (0, who_is_v6(if dice.below(2) == 0 { LEAF[0] } else { 9 })),
    };
    (port, damaged(dice, packet))
}

/// Returns `count` random bursts with their ports, like [`bursts`]. Two bursts come before them: the client's
/// solicitation and the second server's answer. The leaf learns both MAC addresses from them.
fn bursts_v6(seed: u64, count: usize) -> Vec<(usize, Vec<Vec<u8>>)> {
    let first = vec![(0, vec![who_is_v6(LEAF[0])]), (1, vec![second_server_answer()])];
    bursts_of(first, seed, count, any_packet_v6)
}

// promise: library.1
#[test]
fn it_sends_the_bytes_that_the_leaf_sends() {
    for policy in ["horus", "racksched", "round-robin", "jsq", "jbsq(k=1)", "cfcfs"] {
        compare_with_leaf(policy, &text_v6(policy), bursts_v6(3, 400));
    }
}

/// Applies a rewrite to a frame as an application must, like [`apply`], over IPv6. Offsets in the IP header: 7 hop
/// limit, 8 source, 24 destination. Offsets in the task header: 5 destination (worker), 7 queue length (idle flag).
fn apply_v6(rewrite: &Rewrite, &RewriteV6 { src, dst }: &RewriteV6, frame: &mut [u8]) {
    assert_eq!((rewrite.src, rewrite.dst), (0, 0));
    ether::emit_addresses(frame, rewrite.dst_mac, rewrite.src_mac);
    frame[IP + 8..IP + 24].copy_from_slice(&src.to_be_bytes());
    frame[IP + 24..IP + 40].copy_from_slice(&dst.to_be_bytes());
    frame[IP + 7] -= 1;
    let task = usize::from(rewrite.udp_at) + udp::LEN;
    if rewrite.task {
        frame[task + 5..][..2].copy_from_slice(&rewrite.worker.to_be_bytes());
        frame[task + 7..][..2].copy_from_slice(&u16::from(rewrite.idle).to_be_bytes());
    }
    udp::renew_checksum_v6(frame);
}

// promise: library.1
#[test]
fn deciding_and_rewriting_agree() {
    for policy in ["horus", "random"] {
        let (rewriting, deciding) = (context_v6(policy), context_v6(policy));
        let forwarded =
            compare_decisions(rewriting, deciding, bursts_v6(5, 400), |rewrite, frame| {
                apply_v6(rewrite, &rewrite.v6.unwrap(), frame);
            });
        assert!(forwarded > 3_000, "{policy}: {forwarded}");
    }
}

#[test]
fn packet_is_held_until_its_next_hop_answers() {
    let mut application = Application::new(context_v6("round-robin"));
    let mut burst: Vec<_> = (0..8).map(|seq| task_v6(Header::new_task(POOL, seq))).collect();
    let verdicts = application.process(0, 1, &mut burst);
    // Round-robin sends half of the tasks to the workers of the second server, whose MAC address is unknown.
    let held = |verdict: &&Verdict| matches!(verdict, Verdict::Hold { worker: 14..18, .. });
    assert_eq!(verdicts.iter().filter(held).count(), 4, "{verdicts:?}");
    assert!(application.release(2).is_none());
    assert_eq!(application.context.question_len(), QUESTION_LEN);
    assert_eq!([0, 1, 2].map(|port| application.context.is_v6(port)), [true, true, false]);
    let mut frame = [0; QUESTION_LEN];
    let question = application.context.question(2, &mut frame).unwrap();
    assert_eq!((question.port, question.len), (1, ndp::FRAME_LEN));
    let asked = ndp::Packet::parse(&frame).unwrap();
    assert_eq!((asked.operation, asked.target), (ndp::Operation::Solicitation, V6_SERVERS[1]));
    assert_eq!((asked.src, asked.mac), (LEAF[1], Some(LEAF_MACS[1])));
    assert_eq!(application.context.question(2, &mut frame), None, "asked once");

    assert_eq!(application.process(1, 3, &mut [second_server_answer()]), [Verdict::Consumed]);
    for verdict in verdicts.iter().filter(held) {
        let released = application.release(3).unwrap();
        let Verdict::Hold { place, worker } = *verdict else { unreachable!() };
        assert_eq!(released.place, place, "in order");
        assert_eq!(released.verdict, Verdict::Forward { port: 1, worker });
        assert_eq!(ether::dst(released.packet.bytes()), SECOND_MAC);
    }
    assert!(application.release(3).is_none());
}

#[test]
fn questions_are_asked_in_buffers_of_a_pool() {
    let mut application = Application::new(context_v6("round-robin"));
    assert!(application.release(1).is_none());
    // One buffer of 96 bytes; a question has 86.
    let mut pool = FramePool::new(1, 96);
    let (question, port) = application.context.ask(1, &mut pool).unwrap();
    assert_eq!(ndp::Packet::parse(question.bytes()).unwrap().target, V6_SERVERS[1]);
    assert_eq!((port, question.bytes().len()), (1, ndp::FRAME_LEN));
}

/// Duplicate address detection sends its solicitation without an option. The answer has one, and is longer than the
/// solicitation. A buffer that cannot grow has no room for it.
#[test]
fn answer_beyond_the_callers_buffer_is_not_made() {
    let mut context = context_v6("horus");
    // Removes the option (8 bytes), sets the source to the unspecified address, and renews the checksum.
    let mut frame = who_is_v6(LEAF[0]);
    frame.truncate(frame.len() - 8);
    let packet = &mut frame[IP..];
    packet[4..6].copy_from_slice(&24_u16.to_be_bytes());
    packet[8..24].fill(0);
    packet[ipv6::LEN + 2..ipv6::LEN + 4].fill(0);
    let sum = ipv6::pseudo_header(packet, ipv6::ICMP, 24).bytes(&packet[ipv6::LEN..]).checksum();
    packet[ipv6::LEN + 2..ipv6::LEN + 4].copy_from_slice(&sum.to_be_bytes());
    let dropped = Verdict::Drop(DropReason::NdMalformed);
    assert_eq!(process(&mut context, 0, 1, &mut [frame.clone()]), [dropped]);
    // A growing buffer has room for the answer.
    let pool = FramePool::new(1, 96);
    let mut verdicts = [Verdict::Consumed];
    let mut burst = [pool.frame(&frame).unwrap()];
    context.process(0, 1, &mut burst, &mut verdicts).unwrap();
    assert_eq!(verdicts, [Verdict::Answer { port: 0 }]);
    let answer = ndp::Packet::parse(burst[0].bytes()).unwrap();
    assert_eq!((answer.dst, answer.mac), (ipv6::ALL_NODES, Some(LEAF_MACS[0])));
}

#[test]
fn without_ports_an_ipv6_address_names_a_host() {
    let text = format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\nworkers_max = 8\n\
         [[pool]]\nid = {POOL}\npolicy = 'round-robin'\n\
         [[server]]\nip = 'fd00:2::b'\nworkers = '10-11'\npool = {POOL}\n\
         [[pool]]\nid = 9\npolicy = 'lsq-update'\nreports = 'messages'\n\
         [[server]]\nip = 'fd00:2::c'\nworkers = '20'\npool = 9\n"
    );
    let options = Options { ticks_hz: TICKS_HZ, macs: &[] };
    let mut scheduler = Scheduler::from_toml(&text, &options).unwrap();
    let mut picker = scheduler.picker(0).unwrap();
    let choices = pick(&mut picker, 1, 0..2);
    let worker = |worker| Choice::Worker { worker, idle: false };
    assert_eq!(choices, [worker(10), worker(11)]);
    assert_eq!(picker.report(&[done(10, 0)]), 1);
    assert_eq!(picker.release(1), None);
    for change in [
        "add-server ip=fd00:2::d".to_owned(),
        format!("add-workers server=fd00:2::d pool={POOL} workers=12"),
    ] {
        scheduler.apply(&change.parse::<Change>().unwrap()).unwrap();
    }
    assert_eq!(picker.release(TICKS_HZ / 1000), None);
    assert_eq!(pick(&mut picker, TICKS_HZ / 1000, 0..3).len(), 3);
    assert_eq!(scheduler.workers().len(), 4);
    assert!(scheduler.totals().balances());
}

// promise: library.1
#[test]
fn ipv6_replies_of_a_keyed_pool_are_proved() {
    use wedjat::wire::auth::{Key, addresses_v6};
    let bare = reply_v6(10, 2);
    let signed = |sequence| {
        let header = Header::parse(&bare[udp::PAYLOAD_V6..]).unwrap();
        let mut frame = reply_of(Header { authenticated: true, ..header });
        let addresses = addresses_v6(V6_SERVERS[0], V6_CLIENT);
        Key::new([5; 16]).sign(&addresses, &mut frame[udp::PAYLOAD_V6..], sequence);
        udp::renew_checksum_v6(&mut frame);
        frame
    };
    check_proof(&text_v6("horus"), &bare, signed);
}

// promise: library.1
#[test]
fn unsupported_ipv6_use_is_refused() {
    let refused = |old: &str, new: &str| {
        let text = text_v6("horus");
        assert!(text.contains(old), "{old}");
        let options = Options { ticks_hz: TICKS_HZ, macs: &LEAF_MACS };
        Scheduler::from_toml(&text.replacen(old, new, 1), &options).unwrap_err().to_string()
    };
    let mixed = refused("ip = 'fd00:2::c'", "ip = '10.0.2.12'");
    assert!(mixed.contains("of IPv4 or of IPv6 for all [[server]] of a pool"), "{mixed}");
}
