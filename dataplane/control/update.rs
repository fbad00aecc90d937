//! What leads a core from one membership to the next.

use std::sync::Arc;

use super::membership::{Membership, Pool, Worker};
use crate::policy::{Core, Dispatcher, Prepared, stream_seed};
use crate::stage::affinity::AffinityTable;
use crate::stage::{Network, NewPool, Recognition, Step, Update};
use crate::state::{Member, Table};

/// Two memberships, and the network of the second.
pub(super) struct Updates<'a> {
    pub from: &'a Membership,
    pub to: &'a Membership,
    pub network: Arc<Network>,
}

impl Updates<'_> {
    /// For the core at `index` of so many.
    pub fn of_core(&self, table: &Table, (index, count): (usize, usize), seed: u64) -> Update {
        let mut update = Update {
            epoch: self.to.epoch,
            recognition: Some(Recognition::new(Arc::clone(&self.network))),
            ..Update::default()
        };
        let core = Core { index, count };
        for pool in 0..self.to.pools.len() {
            let from = self.from.pools.get(pool).and_then(Option::as_ref);
            match (from, &self.to.pools[pool]) {
                (None, Some(to)) => self.begin(&mut update, (pool, to), table, core, seed),
                (Some(from), None) => self.members(&mut update, pool, &from.members, &[]),
                (Some(from), Some(to)) => self.change(&mut update, pool, (from, to), core),
                (None, None) => {}
            }
        }
        update
    }

    fn begin(
        &self,
        update: &mut Update,
        (pool, to): (usize, &Pool),
        table: &Table,
        core: Core,
        seed: u64,
    ) {
        let view = table.view(core.index, pool);
        let seed = stream_seed(seed, core.index, pool);
        let mut dispatcher =
            Dispatcher::new(&to.policy, view, core, seed).with_queue(to.queue, to.overflow);
        let places = dispatcher.view().members();
        if let Some(speeds) = to.speeds(places) {
            dispatcher.set_rates(&speeds);
        }
        let new = NewPool {
            dispatcher,
            shared_workers: to.shared_workers,
            unfinished: AffinityTable::queue_of_a_pool(),
        };
        update.steps.push(Step::Begin { new: Box::new(Some(new)), pool });
        let places = (0..places as u16).map(Member);
        update.steps.extend(places.map(|member| Step::Meet { pool, member }));
    }

    fn change(&self, update: &mut Update, pool: usize, (from, to): (&Pool, &Pool), core: Core) {
        self.members(update, pool, &from.members, &to.members);
        let places = self.network.members(pool).len();
        let speeds = to.speeds(places);
        let has_speeds = speeds.is_some() || from.speeds(places).is_some();
        if has_speeds && from.members != to.members {
            let rates = speeds.unwrap_or_else(|| vec![1.0; places].into_boxed_slice());
            update.steps.push(Step::Rates { pool, rates });
        }
        if from.policy != to.policy {
            let policy = Box::new(Prepared::new(&to.policy, places, core));
            update.steps.push(Step::Policy { pool, policy });
        }
        if (from.queue, from.overflow) != (to.queue, to.overflow) {
            update.steps.push(Step::Queue { pool, bound: to.queue, overflow: to.overflow });
        }
        if from.policy != to.policy || from.members != to.members {
            update.touched.push(pool);
        }
    }

    fn members(
        &self,
        update: &mut Update,
        pool: usize,
        from: &[Option<Worker>],
        to: &[Option<Worker>],
    ) {
        for place in 0..from.len().max(to.len()) {
            let member = Member(place as u16);
            let at = |members: &[Option<Worker>]| members.get(place).copied().flatten();
            match (at(from), at(to)) {
                (None, Some(to)) => {
                    update.steps.push(Step::Meet { pool, member });
                    let active = !to.is_leaving;
                    update.steps.push(Step::Choose { pool, member, active });
                }
                (Some(_), None) => {
                    update.steps.push(Step::Forget { pool, member });
                    update.steps.push(Step::Meet { pool, member });
                }
                (Some(from), Some(to)) => {
                    if self.server(self.from, from) != self.server(self.to, to) {
                        update.steps.push(Step::Meet { pool, member });
                    }
                    if from.is_leaving != to.is_leaving {
                        let active = !to.is_leaving;
                        update.steps.push(Step::Choose { pool, member, active });
                    }
                }
                (None, None) => {}
            }
        }
    }

    fn server(&self, of: &Membership, worker: Worker) -> Option<super::Server> {
        of.servers.get(usize::from(worker.server)).copied().flatten()
    }
}
