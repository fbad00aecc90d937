//! Cost of a task in the generator: sending it and receiving its answer.
//!
//! `task_cost TASKS STEP_NS v4|v6` runs a generator in emulated time, at a million tasks per second, over a port that
//! answers each task. `STEP_NS` is the time between two polls: 1000 for one task per poll on average, 20000 for bursts.
//! The difference of two runs under callgrind gives the instructions per task, without the start:
//!
//! ```text
//! cargo build --release --package wedjat-pktgen --no-default-features --example task_cost
//! valgrind --tool=callgrind --toggle-collect='task_cost::transmit' --toggle-collect='task_cost::receive' \
//!     target/release/examples/task_cost 100000 1000 v4
//! ```
#![forbid(unsafe_code)]

use std::error::Error;

use wedjat::io::memory::{Frame, FramePool};
use wedjat::io::{Burst, Port};
use wedjat::wire::ether::Mac;
use wedjat_pktgen::address::{Addresses, Endpoints};
use wedjat_pktgen::engine::Generator;
use wedjat_pktgen::load::Load;
use wedjat_pktgen::reflector::reflect;
use wedjat_pktgen::target::Target;

/// Tasks per second.
const RATE: f64 = 1e6;
/// MAC address of the generator.
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// A port that holds a burst of tasks, and returns them as answers. Its calls are never inlined, so that callgrind
/// separates them from the generator.
struct AnsweringPort(Burst<Frame>);

impl Port for AnsweringPort {
    type Buf = Frame;

    #[inline(never)]
    fn rx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        burst.extend(self.0.drain(..));
        burst.len()
    }

    #[inline(never)]
    fn tx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        burst.iter_mut().for_each(|buf| assert!(reflect(buf, MAC), "not a task"));
        self.0.extend(burst.drain(..));
        self.0.len()
    }
}

/// Sends the due tasks. Never inlined, so that callgrind counts it.
#[inline(never)]
fn transmit(generator: &mut Generator<AnsweringPort, FramePool>, now: u64) {
    generator.transmit(now);
}

/// Receives the answers. Never inlined, so that callgrind counts it.
#[inline(never)]
fn receive(generator: &mut Generator<AnsweringPort, FramePool>, now: u64) {
    generator.receive(now);
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [tasks, step, family] = &arguments[..] else {
        return Err("task_cost TASKS STEP_NS v4|v6".into());
    };
    let (tasks, step): (f64, u64) = (tasks.parse()?, step.parse()?);
    let addresses = match family.as_str() {
        "v4" => Addresses::V4(Endpoints { own: 1, dst: 2, next_hop: 2 }),
        _ => Addresses::V6(Endpoints { own: 1, dst: 2, next_hop: 2 }),
    };
    let target = Target { next_hop_mac: Some(MAC), ..Target::to(MAC, addresses) };
    let load =
        Load { warmup_s: 0.0, duration_s: tasks / RATE, ..Load::new(RATE, "exp(50us)".parse()?) };
    let port = AnsweringPort(Burst::new());
    let mut generator = Generator::new(&load, &target, 0, 1e9, port, FramePool::new(256, 256))?;
    let mut now = 1;
    while !generator.phase().is_over() {
        transmit(&mut generator, now);
        receive(&mut generator, now + step / 2);
        now += step;
    }
    let ledger = generator.tally().measured;
    println!("{} tasks, {} answered in {} polls", ledger.scheduled, ledger.answered, now / step);
    Ok(())
}
