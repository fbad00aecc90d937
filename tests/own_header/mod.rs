//! Workers and a client for tests of examples/own_header.rs and examples/own_header.c. These programs have a packet
//! header of their own, and use wedjat to choose a worker for each task.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Configuration of the example programs: two workers, each with at most one task at a time.
pub const TEXT: &str = "[leaf]\nid = 1\ncores = [0]\nseed = 7\n[[pool]]\nid = 1\npolicy = 'jbsq(k=1)'\n\
                        [[server]]\nip = '10.0.0.2'\nworkers = '5-6'\npool = 1\n";
/// Ids of the workers.
const WORKERS: [u16; 2] = [5, 6];
/// Number of counted tasks, which follow the first answered trial task.
const TASKS: u8 = 30;
/// Time between two trials. A trial has three packets, so a program that starts late finds at most 450 in its socket.
/// A shorter interval could overflow the socket's buffer. A lost reply would keep its worker busy.
const TRIAL_INTERVAL: Duration = Duration::from_millis(200);

/// Returns a packet with the example programs' header: kind, queue length of the worker (0), worker, then `rest`.
///
/// `kind` is `h` for a worker's registration, `t` for a task or `r` for its reply. `rest` has a ticket of four bytes,
/// which the worker returns. In a task or reply, the task's number follows, one byte.
fn packet(kind: u8, worker: u16, rest: &[u8]) -> Vec<u8> {
    let worker = worker.to_be_bytes();
    [&[kind, 0, worker[0], worker[1]], rest].concat()
}

/// Runs two workers and a client against the example program at this address. Checks that each counted task is answered
/// once, and that both workers answer some of them. Panics after 30 s.
pub fn tasks_are_done(serving: SocketAddr) {
    let socket = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let (client, workers) = (socket(), WORKERS.map(|worker| (worker, socket())));
    let started = Instant::now();
    // The program may not have started yet. So each trial registers the workers and sends a trial task, until a trial
    // task is answered. A trial task carries the number TASKS; the counted tasks carry smaller numbers.
    // `trial_answered`: a trial task was answered, and the counted tasks are sent. `answers`: numbers of answered
    // counted tasks. `done`: counted tasks of each worker.
    let (mut trial_answered, mut answers, mut done) = (false, BTreeSet::new(), BTreeMap::new());
    let mut next_trial = started;
    let mut bytes = [0; 64];
    while answers.len() < usize::from(TASKS) {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "trial answered: {trial_answered}; answered are {answers:?}; done by worker: {done:?}"
        );
        if !trial_answered && Instant::now() >= next_trial {
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
            } else if !trial_answered {
                trial_answered = true;
                for task in 0..TASKS {
                    client.send_to(&packet(b't', 0, &[0, 0, 0, 0, task]), serving).unwrap();
                }
            }
        }
    }
    let busy = done.iter().filter(|(_, tasks)| **tasks > 0).map(|(worker, _)| *worker);
    assert_eq!(busy.collect::<Vec<_>>(), WORKERS, "{done:?}");
}
