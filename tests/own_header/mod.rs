//! Workers and a client for tests of examples/own_header.rs and examples/own_header.c. These programs have a packet
//! header of their own, and use wedjat to choose a worker for each task.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Configuration of the examples: two workers, each with at most one task at a time.
pub const TEXT: &str = "[leaf]\nid = 1\ncores = [0]\nseed = 7\n[[pool]]\nid = 1\npolicy = 'jbsq(k=1)'\n\
                        [[server]]\nip = '10.0.0.2'\nworkers = '5-6'\npool = 1\n";
/// Ids of the workers.
const WORKERS: [u16; 2] = [5, 6];
/// Number of measured tasks.
const TASKS: u8 = 30;
/// Time between two trial tasks. A program that does not read for the whole test has at most 450 packets of trials
/// to read. More in a shorter time overflow its socket's buffer, and a lost reply occupies its worker for ever.
const TRIAL_INTERVAL: Duration = Duration::from_millis(200);

/// Returns a packet of the examples. `kind` is `h` for a worker's registration, `t` for a task or `r` for its
/// reply. The 0 is the worker's queue length. `rest` has a ticket of four bytes, which the worker returns, and the
/// data: the number of the task.
fn packet(kind: u8, worker: u16, rest: &[u8]) -> Vec<u8> {
    let worker = worker.to_be_bytes();
    [&[kind, 0, worker[0], worker[1]], rest].concat()
}

/// Runs two workers and a client against the program at this address. Checks that each task is answered once
/// and that both workers take part.
pub fn tasks_are_done(serving: SocketAddr) {
    let socket = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let (client, workers) = (socket(), WORKERS.map(|worker| (worker, socket())));
    let started = Instant::now();
    // The program may not have started yet. Until a trial task is answered, the workers register and the client
    // sends a trial task, again after each TRIAL_INTERVAL. Its number is TASKS; the measured tasks have smaller
    // ones.
    // `sent`: a trial task was answered, and the measured tasks are sent. `answers`: numbers of answered tasks. `done`:
    // number of measured tasks of each worker.
    let (mut sent, mut answers, mut done) = (false, BTreeSet::new(), BTreeMap::new());
    let mut next_trial = started;
    let mut bytes = [0; 64];
    while answers.len() < usize::from(TASKS) {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "trial answered: {sent}; answered are {answers:?}; done by worker: {done:?}"
        );
        if !sent && Instant::now() >= next_trial {
            next_trial = Instant::now() + TRIAL_INTERVAL;
            for (worker, socket) in &workers {
                let _ = socket.send_to(&packet(b'h', *worker, &[0; 4]), serving);
            }
            let _ = client.send_to(&packet(b't', 0, &[0, 0, 0, 0, TASKS]), serving);
        }
        std::thread::sleep(Duration::from_millis(1));
        for (worker, socket) in &workers {
            while let Ok((length, from)) = socket.recv_from(&mut bytes) {
                assert_eq!(bytes[..4], packet(b't', *worker, &[]), "a task for {worker}");
                *done.entry(*worker).or_insert(0) += u8::from(bytes[8] < TASKS);
                socket.send_to(&packet(b'r', *worker, &bytes[4..length]), from).unwrap();
            }
        }
        while let Ok((length, _)) = client.recv_from(&mut bytes) {
            assert_eq!((bytes[0], length), (b'r', 9));
            if bytes[8] < TASKS {
                assert!(answers.insert(bytes[8]), "{} is answered twice", bytes[8]);
            } else if !sent {
                sent = true;
                for task in 0..TASKS {
                    client.send_to(&packet(b't', 0, &[0, 0, 0, 0, task]), serving).unwrap();
                }
            }
        }
    }
    let busy = done.iter().filter(|(_, tasks)| **tasks > 0).map(|(worker, _)| *worker);
    assert_eq!(busy.collect::<Vec<_>>(), WORKERS, "{done:?}");
}
