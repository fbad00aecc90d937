//! Choice of the node that a command reads or changes, by its state file.

use std::path::{Path, PathBuf};

use clap::Args;
use wedjat::state::Snapshot;
use wedjat::state::files::{NameError, NameLock};
use wedjat::state::table::agents_file;

/// Folder of state files, as in the example configurations.
const FOLDER: &str = "/dev/shm";
/// Environment variable with the state file for commands without one.
const VARIABLE: &str = "WEDJAT_STATE";

/// Node that a command reads.
#[derive(Debug, Args)]
pub struct Node {
    /// State file, `leaf.state` or `agent.state` of the configuration [default: that of WEDJAT_STATE, else of
    /// the only running node whose state file is in /dev/shm]
    #[arg(value_name = "STATEFILE")]
    file: Option<PathBuf>,
    /// Same as STATEFILE, as an option
    #[arg(long, value_name = "STATEFILE", conflicts_with = "file")]
    node: Option<PathBuf>,
}

impl Node {
    /// Returns the node's state file.
    ///
    /// # Errors
    /// If the command and the environment name none, and the number of running nodes is not one.
    pub fn state_file(&self) -> Result<PathBuf, String> {
        state_file(self.file.clone().or(self.node.clone()))
    }
}

/// Returns the named state file, else that of the environment, else that of the only running node.
///
/// # Errors
/// If the command and the environment name none, and the number of running nodes is not one.
pub fn state_file(named: Option<PathBuf>) -> Result<PathBuf, String> {
    let variable = || std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    match named.or_else(|| variable().map(PathBuf::from)) {
        Some(path) => Ok(path),
        None => only_one(running_in(Path::new(FOLDER))),
    }
}

/// Returns the only state file, or an error with the list of nodes.
fn only_one(mut running: Vec<PathBuf>) -> Result<PathBuf, String> {
    let hint = format!("name its state file with --node or in {VARIABLE}");
    match running.len() {
        0 => Err(format!("no running node has its state file in {FOLDER}: start one, or {hint}")),
        1 => Ok(running.remove(0)),
        count => {
            let nodes: String = running.iter().map(|path| describe(path)).collect();
            Err(format!("{count} nodes are running: {hint}{nodes}"))
        }
    }
}

/// Describes a node in a list: its state file as an option, its role, id and pid.
fn describe(path: &Path) -> String {
    let description = Snapshot::open(path).map_or_else(
        |error| error.to_string(),
        |node| format!("{} {}, pid {}", node.role.name(), node.node, node.pid),
    );
    format!("\n  --node {}  # {description}", path.display())
}

/// Returns the sorted state files of running nodes. Leaves out an agent on a leaf's core, because commands read it with
/// the leaf.
fn running_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let is_running = |path: &PathBuf| {
        Snapshot::open(path)
            .is_ok_and(|snapshot| snapshot.running && !has_exited(path, snapshot.pid))
    };
    let mut running: Vec<_> = files.map(|entry| entry.path()).filter(is_running).collect();
    let agent_paths: Vec<_> = running.iter().map(|path| agents_file(path)).collect();
    running.retain(|path| !agent_paths.contains(path));
    running.sort();
    running
}

/// Returns true if the node with this state file and process id was killed: its file still says that it runs. No
/// process here has its id, and none holds its lock. Returns false without /proc.
pub fn has_exited(path: &Path, pid: u64) -> bool {
    let is_missing =
        Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{pid}")).exists();
    // A node in another PID namespace has another id here, but its lock shows that it runs.
    is_missing && !matches!(NameLock::look(path), Err(NameError::Held(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wedjat::state::Table;
    use wedjat::state::table::{PoolSpec, Role, Spec};

    /// Creates the state file of a running node: this process counts as the node.
    fn node(path: &Path, role: Role) -> Table {
        let pools = vec![PoolSpec {
            id: 1,
            policy: "horus".into(),
            objective: String::new(),
            workers: Vec::new(),
        }];
        Table::create(path, &Spec { role, cores: 1, ports: 1, pools, ..Spec::default() }).unwrap()
    }

    // promise: control.1
    #[test]
    fn single_node_is_found_several_are_ambiguous() {
        let folder = tempfile::tempdir().unwrap();
        let found = || only_one(running_in(folder.path()));
        let path_of = |name: &str| folder.path().join(name);
        std::fs::write(path_of("foreign"), "the only copy of something").unwrap();
        assert!(found().unwrap_err().contains("no running node"));
        // A dropped table marks its node as ended.
        drop(node(&path_of("ended"), Role::Leaf));
        assert!(found().unwrap_err().contains("WEDJAT_STATE"));
        let leaf = node(&path_of("leaf"), Role::Leaf);
        let _agent_on_its_core = node(&agents_file(&path_of("leaf")), Role::Agent);
        assert_eq!(found().unwrap(), path_of("leaf"));
        let _other = node(&path_of("agent"), Role::Agent);
        let error = found().unwrap_err();
        let lines: Vec<_> = error.lines().collect();
        assert!(lines[0].contains("2 nodes are running") && lines[0].contains("--node"), "{error}");
        let own = std::process::id();
        for (line, (name, node)) in
            lines[1..].iter().zip([("agent", "agent 0"), ("leaf", "leaf 0")])
        {
            let expected = format!("  --node {}  # {node}, pid {own}", path_of(name).display());
            assert_eq!(**line, expected);
        }
        assert_eq!(lines.len(), 3);
        drop(leaf);
        assert!(found().is_err(), "the agents of both files are there still");
    }

    // promise: control.1
    #[test]
    fn node_of_another_pid_namespace_has_not_exited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leaf");
        let table = node(&path, Role::Leaf);
        let unknown = u64::from(u32::MAX); // the id of no process
        assert!(!has_exited(&path, unknown));
        drop(table);
        assert!(has_exited(&path, unknown));
    }

    #[test]
    fn named_node_is_used() {
        let named = |file: Option<&str>, node: Option<&str>| {
            let path = |name: Option<&str>| name.map(PathBuf::from);
            Node { file: path(file), node: path(node) }.state_file().unwrap()
        };
        assert_eq!(named(Some("one"), None), Path::new("one"));
        assert_eq!(named(None, Some("two")), Path::new("two"));
    }
}
