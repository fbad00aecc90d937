//! Changes to running nodes by `wedjat ctl`, repeated while honest tasks pass. The tasks come from a driver,
//! a `wedjat-testbed drive` process that emulates clients and workers. A [`Site`] is a folder with the files of the
//! processes.

use std::process::Command;
use std::time::Instant;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::rigs::processes::{Job, Site, check_alive, check_end, check_outcomes};
use super::{Account, Attack, Budget, Failure, attack_table};
use crate::demo::leaf::NodeProcess;

/// The attacks of this file.
pub static ATTACKS: &[Attack] = attack_table! {
    "changed-leaf" Processes => |budget, account| {
            let site = Site::new()?;
            let (leaf, driver) = (site.leaf()?, site.start_drive(budget.seconds)?);
            change_under_load(&site, leaf, driver, &LEAF, budget, account)
        },
        "half of a leaf's workers are drained, removed and added again, and its policy and their speeds change, under \
         load";
    "changed-agent" Processes => |budget, account| {
            let site = Site::new()?;
            let (agent, driver) = (site.agent()?, site.start_attached(budget.seconds)?);
            change_under_load(&site, agent, driver, &AGENT, budget, account)
        },
        "half of an agent's workers are drained, and its policy, its queue and their speeds change, under load";
};

/// Changes to a leaf. Changes to workers concern those of the second server.
const LEAF: [&str; 11] = [
    "drain 4-5",
    "undrain 4-5",
    "drain 7",
    "undrain 7",
    "remove-workers 6-7",
    "add-workers 6-7 --server 10.0.2.12 --pool 1",
    "pool policy 1 horus",
    "pool policy 1 jbsq(k=3)",
    "pool policy 1 racksched",
    "speed 4-7 1.1",
    "speed 4-7 1",
];
/// Changes to an agent. None removes a worker, because the driver's emulated workers stay attached.
const AGENT: [&str; 9] = [
    "drain 4-7",
    "undrain 4-7",
    "drain 6",
    "undrain 6",
    "pool policy 1 jbsq(k=2)",
    "pool policy 1 cfcfs",
    "pool policy 1 jsq",
    "pool queue 1 2000",
    "speed 4-7 1.1",
];

/// Makes random changes to a node during 80% of the budget, while its driver sends tasks. The node must accept each
/// change or refuse it for an expected reason, answer every task, and end in order.
fn change_under_load(
    site: &Site,
    mut node: NodeProcess,
    driver: Job,
    changes: &[&str],
    budget: &Budget,
    account: &mut Account,
) -> Result<(), Failure> {
    site.until("the first task", || Ok(site.counter("scheduled")? > 0))?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(budget.seed);
    let began = Instant::now();
    let (mut accepted, mut refused, mut failed) = (0_u64, 0_u64, Vec::new());
    while began.elapsed().as_secs_f64() < 0.8 * budget.seconds && node.check().is_ok() {
        let change = changes[random.random_range(0..changes.len())];
        let mut command = Command::new(site.binary());
        command.args(["ctl", "--node"]).arg(site.state()).args(change.split(' '));
        let output = command.output()?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        // Changes come in random order, so the workers of a change may already exist, be leaving, or be removed.
        let is_expected = errors.contains("exists already")
            || errors.contains("does not exist")
            || errors.contains("it is leaving");
        match output.status.success() {
            true => accepted += 1,
            false if is_expected => refused += 1,
            false => failed.push(format!("{change}: {}", errors.trim())),
        }
    }
    account.tried("changes", accepted + refused);
    account.check("every change is answered", failed.is_empty(), failed.join("; "));
    account.check("changes are made", accepted > 0, format!("{accepted} made, {refused} refused"));
    check_outcomes(account, "every task is answered", driver.outcomes());
    if check_alive(account, "the node lives", &mut node) {
        check_end(account, "the node", node);
    }
    Ok(())
}
