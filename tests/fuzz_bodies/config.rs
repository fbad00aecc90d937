//! Fuzz body: arbitrary bytes as the text of a leaf's or spine's configuration. The parser either rejects it with
//! reasons that help a person, or returns a configuration from which a node's tables can be built.

use std::collections::BTreeSet;
use std::path::Path;

use wedjat::config::Config;

/// Runs one input: parses it, and checks the list of faults or the configuration.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Config::parse(Path::new("leaf.toml"), &text) {
        Err(error) => {
            assert!(!error.faults.is_empty(), "a refusal says why");
            let lines = 1 + text.bytes().filter(|&byte| byte == b'\n').count();
            for fault in &error.faults {
                // Line 0 stands for the file as a whole.
                assert!(fault.line <= lines, "line {} of {lines}", fault.line);
                assert!(!fault.found.is_empty() && !fault.allowed.is_empty(), "{fault:?}");
            }
            assert!(error.to_string().starts_with("leaf.toml"));
        }
        Ok(config) => assert_fits(&config),
    }
}

/// Checks the properties of a valid configuration on which the tables of the packet path rely.
fn assert_fits(config: &Config) {
    assert!(!config.leaf.cores.is_empty() && !config.ports.is_empty());
    let pools: BTreeSet<u16> = config.pools.iter().map(|(id, _)| *id).collect();
    assert_eq!(pools.len(), config.pools.len(), "pool ids are distinct");
    let mut workers = BTreeSet::new();
    for server in &config.servers {
        assert!(pools.contains(&server.pool), "servers serve existing pools");
        for &worker in &server.workers {
            assert!(worker <= wedjat::limits::WORKER_ID_MAX);
            assert!(workers.insert(worker), "worker {worker} is unique");
        }
    }
}
