//! A dispatcher and two workers at their channels while somebody writes into any word of their region: whatever they find
//! there, both stay within it, and the dispatcher's count of tasks is right.
//!
//! An input is a script of steps.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use wedjat::ring::{Channel, Guest, Outcome, Place, TaskIds, WorkerRegion};

const SLOTS: usize = 4;
const PAYLOAD: usize = 16;
const WORKERS: usize = 2;
/// Bytes of a step: what, where, and a value.
const STEP: usize = 11;

/// A channel, who is at it, and the tasks given, completed and given up.
struct Seat {
    channel: Channel,
    guest: Option<Guest>,
    given: u64,
    ended: u64,
}

/// One input; tasks that were answered.
pub fn run(input: &[u8]) -> u64 {
    let places = [0, 1].map(|id| Place { id, pool: 3 });
    let region = WorkerRegion::heap(&places, SLOTS, PAYLOAD).expect("a region that can be");
    let region = Arc::new(region);
    let memory = region.memory();
    let mut seats: [Seat; WORKERS] = std::array::from_fn(|at| Seat {
        channel: region.channel(at),
        guest: None,
        given: 0,
        ended: 0,
    });
    let mut answered = 0;
    for step in input.chunks_exact(STEP) {
        let at = usize::from(u16::from_le_bytes([step[1], step[2]]));
        let value = u64::from_le_bytes(step[3..].try_into().expect("eight bytes"));
        let seat = &mut seats[at % WORKERS];
        match step[0] % 8 {
            0 => memory[at % memory.len()].store(value, Relaxed),
            // Few bits: counts and lengths that could nearly be.
            1 => memory[at % memory.len()].store(value % 64, Relaxed),
            2 => seat.guest = region.claim(at % WORKERS).ok().flatten().or(seat.guest.take()),
            3 => seat.guest = None,
            4 => seat.let_in(),
            5 => seat.give(value),
            6 => seat.work(value),
            _ => answered += seat.collect(),
        }
        for seat in &seats {
            let outstanding = seat.channel.sender().outstanding();
            assert!(outstanding <= SLOTS);
            assert_eq!(seat.given, seat.ended + outstanding as u64, "no task is lost or doubled");
        }
    }
    answered
}

impl Seat {
    fn let_in(&mut self) {
        let claim = self.channel.sender().claim();
        if claim != 0 && claim != self.channel.sender().granted() {
            self.give_up();
            self.channel.sender_mut().grant(claim);
        }
        if let Some(guest) = &mut self.guest
            && guest.receiver().is_granted()
            && !guest.has_task()
        {
            guest.start();
        }
    }

    fn give_up(&mut self) {
        let lost = self.channel.sender_mut().revoke();
        self.ended += lost.end - lost.start;
    }

    fn give(&mut self, value: u64) {
        let ids = TaskIds { app: 1, seq: value as u32, class: 0 };
        let payload = &value.to_le_bytes().repeat(2)[..value as usize % (PAYLOAD + 1)];
        self.given += u64::from(self.channel.give(ids, payload));
    }

    fn work(&mut self, value: u64) {
        let Some(guest) = &mut self.guest else { return };
        if !guest.has_task() && guest.take() != Ok(true) {
            return;
        }
        assert!(guest.payload().len() <= PAYLOAD);
        match value % 3 {
            0 => guest.give_up(value),
            _ => {
                let echo = |task: &[u8], reply: &mut [u8]| {
                    reply[..task.len()].copy_from_slice(task);
                    task.len()
                };
                guest.answer(echo, || value);
            }
        }
    }

    /// How many were answered.
    fn collect(&mut self) -> u64 {
        let Ok(done) = self.channel.collect() else {
            self.give_up();
            return 0;
        };
        self.ended += done.end - done.start;
        let mut answered = 0;
        for number in done {
            if let Outcome::Reply { len, .. } = self.channel.outcome(number) {
                let mut reply = [0; PAYLOAD];
                self.channel.reply(number, &mut reply[..len]);
                answered += 1;
            }
        }
        self.channel.sender_mut().worked_ns();
        answered
    }
}
