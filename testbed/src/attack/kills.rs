//! Drivers and workers killed under load, signals to nodes, consecutive runs, agents with the same name, and invalid
//! addresses. A driver is a process with emulated clients and workers. A [`Site`] is a folder with the files of the
//! processes.

use std::process::Command;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::Signal;

use super::rigs::processes::{
    Job, Site, check_alive, check_end, check_outcomes, describe_exit, send_signal,
};
use super::{Account, Attack, Budget, Failure, attack_table};

/// Time within which a node must end after a signal.
const END: Duration = Duration::from_secs(3);
/// Number of agents with one name that start at once.
const RIVALS: usize = 6;
/// Number of repetitions of the start of rival agents.
const ROUNDS: usize = 5;

/// The attacks of this file.
pub static ATTACKS: &[Attack] = attack_table! {
    "runs-in-turn" Processes => |_, account| runs_in_turn(account),
        "the README's example: one leaf, and three drivers in turn, each with its own MAC addresses";
    "killed-peers" Processes => killed_peers,
        "the processes behind a leaf's memif ports are killed under load repeatedly";
    "killed-workers" Processes => killed_workers,
        "an agent's worker processes are killed and replaced immediately, repeatedly";
    "signals" Processes => |_, account| signals(account),
        "SIGHUP, SIGUSR1, SIGPIPE, SIGINT and SIGTERM to a leaf, and SIGTERM to an agent without its memif server";
    "rival-agents" Processes => |_, account| rivals(account),
        "six agents with the same name start simultaneously, five times";
    "impossible-addresses" Processes => |_, account| addresses(account),
        "configurations with addresses that no host can have";
};

/// Runs three drivers after each other against one leaf.
fn runs_in_turn(account: &mut Account) -> Result<(), Failure> {
    let site = Site::new()?;
    let mut leaf = site.leaf()?;
    for run in 1..=3 {
        check_outcomes(account, &format!("run {run}: every task is answered"), site.drive(1.0));
    }
    check_alive(account, "the leaf lives", &mut leaf);
    check_end(account, "the leaf", leaf);
    Ok(())
}

/// Kills the drivers (emulated clients and workers in one process) behind the memif ports at random times.
fn killed_peers(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    let site = Site::new()?;
    let mut leaf = site.leaf()?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(budget.seed);
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < 2.0 * budget.seconds && leaf.check().is_ok() {
        let driver = site.start_drive(30.0)?;
        std::thread::sleep(Duration::from_millis(random.random_range(100..900)));
        driver.kill()?;
        account.tried("kills", 1);
    }
    if check_alive(account, "the leaf lives", &mut leaf) {
        check_outcomes(account, "every task is answered afterwards", site.drive(0.5));
        check_end(account, "the leaf", leaf);
    }
    Ok(())
}

/// Kills random workers and replaces each at once. One of the three shares its core among several tasks. The agent's
/// account must not count them as workers that detached in order.
fn killed_workers(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    let site = Site::new()?;
    let mut agent = site.agent()?;
    let worker = |index: usize| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "--app", "echo", "--attach"]).arg(site.region());
        if index % 2 == 1 {
            command.args(["--sharing", "20us"]);
        }
        Job::start(&mut command, &site.path(&format!("worker{index}")))
    };
    let mut workers = Vec::new();
    for index in 0..3 {
        workers.push(worker(index)?);
    }
    let mut random = Xoshiro256PlusPlus::seed_from_u64(budget.seed);
    let (began, mut kills) = (Instant::now(), 0);
    while began.elapsed().as_secs_f64() < budget.seconds && agent.check().is_ok() {
        std::thread::sleep(Duration::from_millis(random.random_range(50..300)));
        let index = random.random_range(0..workers.len());
        let replacement = worker(index)?;
        std::mem::replace(&mut workers[index], replacement).kill()?;
        kills += 1;
    }
    account.tried("kills", kills);
    if !check_alive(account, "the agent lives", &mut agent) {
        return Ok(());
    }
    // Kills the remaining three.
    drop(workers);
    let outcomes = site.start_attached(0.5)?.outcomes();
    check_outcomes(account, "workers can attach, and every task is answered afterwards", outcomes);
    let end = agent.stop()?;
    let detached = end["attach"]["left"].as_u64();
    // The driver's eight emulated workers leave in order.
    account.check(
        "no killed worker is counted as one that left",
        detached.is_some_and(|detached| detached <= 8),
        format!(
            "{detached:?} left, {} died of {kills} killed and three more",
            end["attach"]["died"]
        ),
    );
    Ok(())
}

/// Sends a leaf the signals that end it, and those that must not. Also ends an agent by SIGTERM while it
/// waits for its memif server.
fn signals(account: &mut Account) -> Result<(), Failure> {
    for (signal, name) in [(Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM")] {
        let site = Site::new()?;
        let mut leaf = site.leaf()?;
        site.drive(0.1)?;
        send_signal(&leaf, signal)?;
        account.tried("signals", 1);
        let status = leaf.wait_for_exit(END);
        account.check(
            format!("{name}: the leaf ends in order within {} s, with its account", END.as_secs()),
            status.is_some_and(|status| status.success()) && site.path("leaf.json").exists(),
            status.map_or_else(|| "still running".to_owned(), describe_exit),
        );
    }
    let site = Site::new()?;
    let mut leaf = site.leaf()?;
    // After SIGHUP the leaf reads its configuration again.
    for signal in [Signal::HUP, Signal::USR1, Signal::PIPE] {
        send_signal(&leaf, signal)?;
        account.tried("signals", 1);
    }
    std::thread::sleep(Duration::from_millis(200));
    if check_alive(account, "SIGHUP, SIGUSR1 and SIGPIPE: the leaf lives", &mut leaf) {
        check_end(account, "SIGHUP, SIGUSR1 and SIGPIPE", leaf);
    }
    let site = Site::new()?;
    // The agent waits during its start, as a memif client without a server.
    let config =
        site.agent_config(&site.state(), &site.region()).replace("role=server", "role=client");
    let mut agent = site.start(Command::new(site.binary()), "agent", &config)?;
    std::thread::sleep(Duration::from_secs(1));
    let was_alive = agent.check().is_ok();
    send_signal(&agent, Signal::TERM)?;
    account.tried("signals", 1);
    let began = Instant::now();
    let status = agent.wait_for_exit(Duration::from_secs(20));
    // A panic gives exit code 101.
    let has_no_fault = status.and_then(|status| status.code()).is_some_and(|code| code != 101);
    account.check(
        format!(
            "SIGTERM: an agent that waits for its memif server ends within {} s",
            END.as_secs()
        ),
        was_alive && has_no_fault && began.elapsed() < END,
        format!(
            "{} after {:.1} s",
            status.map_or_else(|| "still running".to_owned(), describe_exit),
            began.elapsed().as_secs_f64()
        ),
    );
    Ok(())
}

/// Repeats [`rivals_once`], because its outcome depends on the order in which the agents start.
fn rivals(account: &mut Account) -> Result<(), Failure> {
    for round in 1..=ROUNDS {
        rivals_once(round, account)?;
    }
    Ok(())
}

/// Starts agents with one name, and thus one region, at once. Exactly one must keep running, and a worker must be
/// able to attach to it.
fn rivals_once(round: usize, account: &mut Account) -> Result<(), Failure> {
    let site = Site::new()?;
    let mut agents = Vec::new();
    let sites = (0..RIVALS).map(|_| Site::new()).collect::<Result<Vec<_>, _>>()?;
    for agent_site in &sites {
        let config = agent_site.agent_config(&agent_site.state(), &site.region());
        agents.push(agent_site.start(Command::new(agent_site.binary()), "agent", &config)?);
        account.tried("agents", 1);
    }
    let began = Instant::now();
    let mut running = RIVALS;
    while running > 1 && began.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(100));
        running = agents.iter_mut().filter_map(|agent| agent.check().ok()).count();
    }
    account.check(
        format!("round {round}: one agent runs, and the rest exit with an error"),
        running == 1,
        format!("{running} run"),
    );
    if let Some(index) = agents.iter_mut().position(|agent| agent.check().is_ok()) {
        site.until("the region", || Ok(agents[index].check().map(|()| site.region().exists())?))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "--app", "echo", "--duration", "100ms", "--attach"]);
        let worker = Job::start(command.arg(site.region()), &site.path("worker"))?;
        let (status, _, errors) = worker.finish()?;
        account.check(
            format!("round {round}: a worker can attach to it"),
            status.code() == Some(0),
            format!("{status}: {}", errors.trim()),
        );
        check_end(account, &format!("round {round}, the running agent"), agents.swap_remove(index));
    }
    Ok(())
}

/// Checks that `wedjat check` refuses invalid addresses in place of valid ones: those of a port and of a
/// server.
fn addresses(account: &mut Account) -> Result<(), Failure> {
    let site = Site::new()?;
    let config = site.leaf_config(&site.state())?;
    let check = |text: &str| -> Result<bool, Failure> {
        let file = site.path("checked.toml");
        std::fs::write(&file, text)?;
        let output = Command::new(site.binary()).args(["check", "--config"]).arg(&file).output()?;
        Ok(output.status.success())
    };
    account.check("a sound configuration passes", check(&config)?, "refused");
    let cases = [
        (
            "10.0.1.1/24",
            [
                "0.0.0.0/24",
                "255.255.255.255/24",
                "10.0.1.255/24",
                "10.0.1.0/24",
                "127.0.0.1/8",
                "224.0.0.1/24",
            ],
        ),
        (
            "10.0.2.11",
            ["0.0.0.0", "255.255.255.255", "10.0.2.255", "10.0.2.0", "127.0.0.1", "224.0.0.1"],
        ),
    ];
    for (valid, invalid) in cases {
        for address in invalid {
            account.tried("configurations", 1);
            let text = config.replacen(&format!("\"{valid}\""), &format!("\"{address}\""), 1);
            account.check(format!("{address} for {valid} is refused"), !check(&text)?, "accepted");
        }
    }
    Ok(())
}
