//! Packet storms against the scheduler as a library, in a program that stores the packets itself.

use wedjat::embed::{BURST, Context, Options, Scheduler, Verdict};
use wedjat::io::memory::{Frame, FramePool};
use wedjat::state::Gauge;

use super::rigs::memory::{CLIENTS, LEAF_MACS, SECOND, Setup, WORKERS, config};
use super::storm::{Forger, POLICIES};
use super::{Account, Attack, Budget, Failure, attack_table};

/// Bursts per second of emulated time, from both sides (the leaf's ports) in turn.
const RATE: f64 = 5_000.0;
/// Number of the program's packet buffers, and bytes of each.
const FRAMES: usize = 1 << 14;
const FRAME_BYTES: usize = 2048;

/// The attacks of this file.
pub static ATTACKS: &[Attack] = attack_table! {
    "library-storm" Memory => storm,
        "bursts of all kinds of packets, many of them damaged, to a program that embeds the scheduler";
};

/// A program that embeds the scheduler. The context asks it to hold packets, each at a numbered place.
struct Program {
    context: Context,
    /// Held packets, by place.
    stored: Vec<Option<Frame>>,
    /// Packet buffers of the program.
    pool: FramePool,
    /// Number of held packets with a used or invalid place, and of calls after which the numbers of stored and held
    /// packets differed.
    misplaced: u64,
    /// Number of calls after which the ledger did not balance.
    unbalanced: u64,
}

impl Program {
    /// Processes a burst of forged packets that arrive on a side, and releases held packets. Checks the state after
    /// each call of the context. Returns the number of processed packets.
    fn process(&mut self, side: usize, now: u64, forger: &mut Forger) -> Result<usize, Failure> {
        let frames = || self.pool.frame(&forger.packet(side));
        let mut burst: Vec<Frame> = std::iter::from_fn(frames).take(BURST).collect();
        let mut verdicts = [Verdict::Consumed; BURST];
        self.context.process(side, now, &mut burst, &mut verdicts)?;
        let count = burst.len();
        for (frame, verdict) in burst.into_iter().zip(verdicts) {
            if let Verdict::Hold { place, .. } = verdict {
                match self.stored.get_mut(place as usize) {
                    Some(free @ None) => *free = Some(frame),
                    _ => self.misplaced += 1,
                }
            }
        }
        self.check_state();
        while self.context.release(now, &mut self.stored).is_some() {
            self.check_state();
        }
        Ok(count)
    }

    /// Checks the ledger, and the number of stored packets against that of held ones.
    fn check_state(&mut self) {
        let counters = self.context.counters();
        let stored = self.stored.iter().flatten().count() as u64;
        self.misplaced += u64::from(stored != counters.read(Gauge::Held));
        self.unbalanced += u64::from(!counters.balances());
    }
}

/// Sends forged bursts under each of the [`POLICIES`]. After every call, the ledger must balance and the
/// program must store as many packets as the scheduler holds.
fn storm(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    for policy in POLICIES {
        let config = config(&Setup { policy, seed: budget.seed, ..Setup::default() })?;
        let options = Options { ticks_hz: SECOND, macs: &LEAF_MACS };
        let mut scheduler = Scheduler::new(&config, &options)?;
        let context = scheduler.context(0).ok_or("a scheduler without a core")?;
        let stored = (0..context.places()).map(|_| None).collect();
        let pool = FramePool::new(FRAMES, FRAME_BYTES);
        let mut program =
            Program { context, stored, pool: pool.clone(), misplaced: 0, unbalanced: 0 };
        let mut forger = Forger::new(budget.seed);
        let bursts = (budget.seconds * RATE) as u64;
        for burst in 0..bursts {
            let now = 1 + (burst as f64 * SECOND as f64 / RATE) as u64;
            let side = [CLIENTS, WORKERS][burst as usize % 2];
            account.tried("packets", program.process(side, now, &mut forger)? as u64);
        }
        let Program { misplaced, unbalanced, stored, context, .. } = program;
        account.check(
            format!("{policy}: the ledger balances after every call"),
            unbalanced == 0,
            format!("unbalanced after {unbalanced} calls"),
        );
        account.check(
            format!("{policy}: the program holds the packets that the scheduler counts as held"),
            misplaced == 0,
            format!("{misplaced} differences"),
        );
        // Their packets return to the pool.
        drop((stored, context));
        account.check_buffers(policy, pool.in_use());
    }
    Ok(())
}
