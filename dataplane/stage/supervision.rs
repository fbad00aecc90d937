//! Workers that register: taken out of choice when they fall silent, brought back when they are heard of.
//!
//! Whether a worker is registered or silent is one word that all cores share ([`Presence`]); each core looks at the
//! words now and then and takes silent workers out of its own choice, so no core writes another's lists. That a
//! worker was heard of shows in the number of its reports, which replies raise anyway: they cost nothing more.
//! (Horus, NSDI 2024, A.3: a fixed timeout on what servers say of themselves.)

use crate::policy::Dispatcher;
use crate::state::view::Presence;
use crate::state::{Counter, Counters, Member};

/// Looks at all workers within a timeout: a worker is silent for at most so much of it too long.
const LOOKS: u64 = 8;

/// One worker as one core sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    /// Number of its reports when last looked at.
    reports: u32,
    /// When that number was last seen to have moved, 0 when it never was.
    heard_ns: u64,
    /// It is taken out of this core's choice for its silence.
    out: bool,
    /// It comes back into choice with its next sign of life.
    returns: bool,
}

/// What one core does about silence.
#[derive(Debug)]
pub struct Supervision {
    timeout_ns: u64,
    next_ns: u64,
    /// Nobody's silence counts before this.
    heard_before_ns: u64,
    watches: Vec<Vec<Watch>>,
    /// Pools and members that are taken out: they are looked at more often.
    silent: Vec<(usize, Member)>,
}

impl Supervision {
    /// Workers of these pools are silent after `timeout_ns` without a word; never, when that is 0.
    #[must_use]
    pub fn new(timeout_ns: u64, dispatchers: &[Dispatcher]) -> Self {
        let sizes = dispatchers.iter().map(|dispatcher| dispatcher.view().members());
        let watches: Vec<_> = sizes.map(|size| vec![Watch::default(); size]).collect();
        let silent = Vec::with_capacity(watches.iter().map(Vec::len).sum());
        Self { timeout_ns, next_ns: 0, heard_before_ns: 0, watches, silent }
    }

    /// The timeout in milliseconds, as acknowledgements tell it.
    #[must_use]
    pub fn timeout_ms(&self) -> u16 {
        (self.timeout_ns / 1_000_000).min(u64::from(u16::MAX)) as u16
    }

    /// A worker says that it is there.
    pub(super) fn welcome(
        &mut self,
        pool: usize,
        member: Member,
        dispatcher: &mut Dispatcher,
        counters: &Counters,
    ) {
        note_return(member, dispatcher, counters);
        dispatcher.view().set_presence(member, Presence::Registered);
        self.let_back(pool, member, dispatcher);
    }

    /// Looks for silent workers, and for those that are no longer; true when one came back.
    pub(super) fn tick(
        &mut self,
        now_ns: u64,
        dispatchers: &mut [Dispatcher],
        counters: &Counters,
    ) -> bool {
        if self.timeout_ns == 0 {
            return false;
        }
        let returned = self.look_at_silent(now_ns, dispatchers, counters);
        if now_ns >= self.next_ns {
            let interval = self.timeout_ns / LOOKS;
            // A core that was held up has not heard of anybody meanwhile: their time starts anew.
            if now_ns - self.next_ns > interval {
                self.heard_before_ns = now_ns;
            }
            self.next_ns = now_ns.saturating_add(interval);
            for (pool, dispatcher) in dispatchers.iter_mut().enumerate() {
                for member in (0..dispatcher.view().members() as u16).map(Member) {
                    self.look_at(pool, member, now_ns, dispatcher, counters);
                }
            }
        }
        returned
    }

    fn look_at(
        &mut self,
        pool: usize,
        member: Member,
        now_ns: u64,
        dispatcher: &mut Dispatcher,
        counters: &Counters,
    ) {
        let (presence, reports) =
            (dispatcher.view().presence(member), dispatcher.view().reports(member));
        let watch = &mut self.watches[pool][member.index()];
        if watch.out || presence == Presence::Configured {
            return;
        }
        if presence == Presence::Registered {
            // Another core may have registered it and not yet taken its report.
            if watch.reports != reports || watch.heard_ns == 0 {
                (watch.reports, watch.heard_ns) = (reports, now_ns.max(1));
            }
            let heard_ns = watch.heard_ns.max(self.heard_before_ns);
            if now_ns.saturating_sub(heard_ns) < self.timeout_ns {
                return;
            }
            // The core that is first to notice counts it and writes off what the worker had, of all cores.
            if dispatcher.view().change_presence(member, Presence::Registered, Presence::Silent) {
                counters.add(Counter::WorkersLost, 1);
                dispatcher.view_mut().write_off(member, u32::MAX);
            }
        }
        *watch =
            Watch { reports, out: true, returns: dispatcher.view().is_active(member), ..*watch };
        dispatcher.set_active(member, false);
        self.silent.push((pool, member));
    }

    fn look_at_silent(
        &mut self,
        now_ns: u64,
        dispatchers: &mut [Dispatcher],
        counters: &Counters,
    ) -> bool {
        let before = self.silent.len();
        for at in (0..before).rev() {
            let (pool, member) = self.silent[at];
            let (dispatcher, watch) =
                (&mut dispatchers[pool], &mut self.watches[pool][member.index()]);
            let reports = dispatcher.view().reports(member);
            let heard = watch.reports != reports;
            if heard {
                note_return(member, dispatcher, counters);
            }
            if heard || dispatcher.view().presence(member) == Presence::Registered {
                (watch.reports, watch.heard_ns) = (reports, now_ns.max(1));
                self.let_back(pool, member, dispatcher);
            }
        }
        self.silent.len() < before
    }

    /// Takes a worker that was out into this core's choice again.
    fn let_back(&mut self, pool: usize, member: Member, dispatcher: &mut Dispatcher) {
        let watch = &mut self.watches[pool][member.index()];
        if watch.out {
            watch.out = false;
            self.silent.retain(|silent| *silent != (pool, member));
            dispatcher.set_active(member, watch.returns);
        }
    }

    /// Whether a member may be chosen is decided elsewhere, too; for one that is silent it takes effect when it is
    /// heard of again. True when that is so.
    pub(super) fn defer(&mut self, pool: usize, member: Member, active: bool) -> bool {
        let watch = &mut self.watches[pool][member.index()];
        watch.returns = active;
        watch.out
    }
}

/// The core that is first to hear of a silent worker counts it, and writes off what it was sent too late.
fn note_return(member: Member, dispatcher: &mut Dispatcher, counters: &Counters) {
    if dispatcher.view().change_presence(member, Presence::Silent, Presence::Registered) {
        counters.add(Counter::WorkersBack, 1);
        dispatcher.view_mut().write_off(member, u32::MAX);
    }
}
