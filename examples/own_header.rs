//! A program with its own packet header and sockets, which uses wedjat only to choose a worker for each task.
//!
//! `cargo run --example own_header -- CONFIGURATION ADDRESS` serves at the address without end. The
//! configuration has no ports, one core, and a pool 1.
//!
//! Every packet begins with eight bytes. The first is `h` for a worker's registration, `t` for a task, or `r`
//! for its reply. The second is the number of tasks that the worker has left. The next two are the worker's
//! id. The last four are a ticket, which a worker copies from the task into its reply.
use std::collections::HashMap;
use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use wedjat::embed::{Choice, Options, Scheduler, TaskDescription, WorkerReport};

/// Bytes of the header.
const HEADER: usize = 8;
/// Pool of all tasks.
const POOL: u16 = 1;

/// Unanswered tasks by ticket. Each has its client, for the reply, and its bytes, which may wait for a worker.
type Tasks = HashMap<u32, (SocketAddr, Vec<u8>)>;

/// Serves until `is_over` returns true: passes tasks from clients to the workers that wedjat chooses, and replies from
/// workers to clients. `text` is the configuration. Times are in nanoseconds.
///
/// # Errors
/// If the configuration is invalid or has ports, or the scheduler refuses a call.
pub fn serve(
    text: &str,
    socket: &UdpSocket,
    is_over: impl Fn() -> bool,
) -> Result<(), Box<dyn Error>> {
    let options = Options { ticks_hz: 1_000_000_000, macs: &[] };
    let mut scheduler = Scheduler::from_toml(text, &options)?;
    let mut picker = scheduler.picker(0).ok_or("no core, or ports")?;
    socket.set_read_timeout(Some(Duration::from_millis(1)))?;
    let (start, mut last_ticket) = (Instant::now(), 0_u32);
    // Unanswered tasks, and the address of each worker.
    let (mut tasks, mut workers) = (Tasks::new(), HashMap::new());
    let mut bytes = [0; 2048];
    while !is_over() {
        let received = socket.recv_from(&mut bytes).ok().filter(|(length, _)| *length >= HEADER);
        let now = start.elapsed().as_nanos() as u64;
        // Tasks to send now, by ticket, with the worker of each.
        let mut chosen = Vec::new();
        if let Some((length, from)) = received {
            let worker = u16::from_be_bytes([bytes[2], bytes[3]]);
            let ticket = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let report = WorkerReport { worker, queue: bytes[1].into(), ..WorkerReport::default() };
            match bytes[0] {
                b'h' => {
                    workers.insert(worker, from);
                    picker.report(&[report]);
                }
                b't' => {
                    last_ticket = last_ticket.wrapping_add(1);
                    tasks.insert(last_ticket, (from, bytes[..length].to_vec()));
                    let task = TaskDescription { id: last_ticket.into(), class: 0 };
                    let mut choices = [Choice::Held];
                    picker.pick(POOL, now, &[task], &mut choices)?;
                    match choices[0] {
                        Choice::Worker { worker, .. } => chosen.push((last_ticket, worker)),
                        Choice::Held => {} // kept until its release
                        Choice::Refused | Choice::Dropped(_) => drop(tasks.remove(&last_ticket)),
                    }
                }
                b'r' => {
                    picker.report(&[WorkerReport { answers: true, ..report }]);
                    if let Some((client, _)) = tasks.remove(&ticket) {
                        let _ = socket.send_to(&bytes[..length], client);
                    }
                }
                _ => {} // unknown packet
            }
        }
        while let Some(released) = picker.release(now) {
            let ticket = released.id as u32; // the id was made from a ticket
            match released.outcome {
                Ok(worker) => chosen.push((ticket, worker)),
                Err(_) => drop(tasks.remove(&ticket)),
            }
        }
        for (ticket, worker) in chosen {
            let Some((_, task)) = tasks.get_mut(&ticket) else { continue };
            task[2..4].copy_from_slice(&worker.to_be_bytes());
            task[4..8].copy_from_slice(&ticket.to_be_bytes());
            let is_sent = workers.get(&worker).is_some_and(|to| socket.send_to(task, to).is_ok());
            // The scheduler must not wait for a reply to a task that did not leave.
            if !is_sent {
                picker.lost(worker, 1)?;
                tasks.remove(&ticket);
            }
        }
    }
    Ok(())
}

#[allow(dead_code, reason = "a test has the rest")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: own_header CONFIGURATION ADDRESS";
    let text = std::fs::read_to_string(arguments.next().ok_or(usage)?)?;
    let socket = UdpSocket::bind(arguments.next().ok_or(usage)?)?;
    serve(&text, &socket, || false)
}
