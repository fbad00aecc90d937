//! Leaves over ports in memory, made from a configuration's text as `wedjat leaf` makes them from a file.
#![allow(dead_code, reason = "no test uses all of it")]

use std::path::Path;
use std::sync::Arc;

use wedjat::assembly;
use wedjat::config::Config;
use wedjat::io::memory::{FramePool, RingPort, pair};
use wedjat::node::{Commands, Timing};
use wedjat::role::Leaf;
use wedjat::stage::Network;
use wedjat::state::Table;
use wedjat::wire::ether::Mac;

/// Ticks a second: one is a nanosecond.
pub const TICKS_HZ: u64 = 1_000_000_000;

/// One core of a leaf.
pub struct Built {
    pub leaf: Leaf<RingPort, FramePool>,
    /// The far ends of its ports, in the order of the configuration.
    pub far: Vec<RingPort>,
    /// Its buffers.
    pub frames: FramePool,
    pub commands: Commands,
}

/// How large the ports and pools of a core are.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Packets that a port has room for in each direction.
    pub depth: usize,
    /// Buffers.
    pub frames: usize,
    /// Bytes of each.
    pub bytes: usize,
}

/// All cores of the leaf that this text configures, and the leaf's state. Devices have 02:00:00:00:00:01 and so on for a MAC
/// address.
pub fn leaves(text: &str, sizes: Sizes, adapt: impl FnOnce(&mut Network)) -> (Vec<Built>, Table) {
    let config =
        Config::parse(Path::new("leaf.toml"), text).unwrap_or_else(|error| panic!("{error}"));
    let seed = config.leaf.seed.expect("a seed");
    let table = assembly::table(&config, TICKS_HZ, seed).unwrap();
    let device = |at: usize| Mac([2, 0, 0, 0, 0, at as u8 + 1]);
    let ports = config.ports.iter().enumerate();
    let macs = ports.map(|(at, port)| port.mac.unwrap_or(device(at)));
    let mut network = assembly::network(&config, macs, &table).unwrap();
    adapt(&mut network);
    let network = Arc::new(network);
    let core = |index| {
        let stages = assembly::stages(&config, TICKS_HZ, &network, &table, seed, index);
        let frames = FramePool::new(sizes.frames, sizes.bytes);
        let (near, far): (Vec<_>, _) =
            config.ports.iter().map(|_| pair(sizes.depth, &frames)).unzip();
        let commands = Commands::default();
        let timing = Timing { ticks_hz: TICKS_HZ };
        let leaf = Leaf::new(stages, near, frames.clone(), commands.clone(), timing);
        Built { leaf, far, frames, commands }
    };
    ((0..config.leaf.cores.len()).map(core).collect(), table)
}

/// The only core of the leaf that this text configures.
pub fn leaf(text: &str, sizes: Sizes) -> Built {
    let (mut cores, _) = leaves(text, sizes, |_| {});
    assert_eq!(cores.len(), 1);
    cores.remove(0)
}
