//! Configuration of a controller, which keeps the desired state of a fabric, and `[controller]` of a node that follows
//! one.
//!
//! `FaultCollector` collects faults, so that one check finds all. `at` is a value of the file with its place in the
//! text.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use toml::Spanned;
use wedjat_core::state::files;

use super::control::{self, ControlConfig};
use super::faults::{self, ConfigError, FaultCollector, quoted};
use super::raw_control::{Controller, Follow};
use super::read::File;
use super::settings::Settings;

/// Address at which nodes and operators connect to a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerAddress {
    /// Unix socket, for the same user and root.
    Socket(PathBuf),
    /// URL for TCP, for example `https://controller1:7070`.
    Url(String),
}

impl ControllerAddress {
    /// Parses an address such as `unix:/run/wedjat/fabric.ctl`, `https://controller1:7070` or
    /// `http://127.0.0.1:7070`. Returns `None` for another form, with a user's name, and for `http` beyond a loopback
    /// address.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
            return Some(Self::Socket(path.into()));
        }
        let (scheme, host) = text.split_once("://")?;
        let is_loopback = || {
            // The host without its port, and an IPv6 address without its brackets.
            let name =
                host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
            name == "localhost" || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
        };
        // The host follows a user's name and an `@`.
        let has_form = !host.is_empty() && !host.contains('@');
        let is_allowed = has_form && (scheme == "https" || scheme == "http" && is_loopback());
        is_allowed.then(|| Self::Url(text.to_owned()))
    }
}

impl fmt::Display for ControllerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
            Self::Url(url) => f.write_str(url),
        }
    }
}

/// `[controller]` of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowConfig {
    /// Addresses of the controllers, of which one leads.
    pub addresses: Vec<ControllerAddress>,
    /// Files in PEM for https: the controllers' authority, the node's certificate, and its private key.
    pub tls: Option<[PathBuf; 3]>,
}

/// Store of a controller's desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// A file, for a single controller.
    File(PathBuf),
    /// etcd, for several controllers.
    Etcd {
        /// URLs of the members, for example `http://10.0.9.1:2379`.
        members: Vec<String>,
        /// Prefix of all keys.
        prefix: String,
        /// Duration of the leader's lease in seconds.
        lease_s: u64,
        /// Files in PEM for https: etcd's authority, the controller's certificate, and its private key.
        tls: Option<[PathBuf; 3]>,
    },
}

/// Checked configuration of a controller.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerConfig {
    /// Id.
    pub id: u16,
    /// Store of the desired state.
    pub store: StoreConfig,
    /// Unix socket at which nodes and operators connect, for the same user and root. The default is beside the store's
    /// file; `None` with etcd and without the key.
    pub socket: Option<PathBuf>,
    /// Addresses for TCP.
    pub control: ControlConfig,
    /// Values of all keys.
    pub settings: Settings,
}

/// Returns all three files of TLS, or none. Records a fault if the file names only some of them.
fn tls(
    faults: &mut FaultCollector,
    files: [&Option<Spanned<String>>; 3],
    table: &str,
    names: &str,
) -> Option<[PathBuf; 3]> {
    match files {
        [Some(ca), Some(certificate), Some(key)] => {
            Some([ca, certificate, key].map(|file| PathBuf::from(file.get_ref())))
        }
        files => {
            if let Some(at) = files.into_iter().flatten().next() {
                faults.note(at, table, "not all files of TLS", &format!("all of {names}, or none"));
            }
            None
        }
    }
}

/// Returns the checked `[controller]` of a node; `None` for a node without it.
pub fn follow(faults: &mut FaultCollector, raw: Option<&Follow>) -> Option<FollowConfig> {
    let raw = raw?;
    let files = [&raw.ca, &raw.certificate, &raw.key];
    let tls = tls(faults, files, "controller", "`ca`, `certificate` and `key`");
    let mut addresses = Vec::new();
    for at in raw.addresses.get_ref() {
        let Some(address) = ControllerAddress::parse(at.get_ref()) else {
            let allowed = "unix:/PATH, https://HOST:PORT, or http://127.0.0.1:PORT on this host";
            faults.note(at, "controller.addresses", quoted(at), allowed);
            continue;
        };
        if at.get_ref().starts_with("https:") && tls.is_none() {
            let allowed = "`ca`, `certificate` and `key` beside it";
            faults.note(at, "controller.addresses", quoted(at), allowed);
        }
        addresses.push(address);
    }
    if raw.addresses.get_ref().is_empty() {
        faults.note(&raw.addresses, "controller.addresses", "none", "at least one");
    }
    Some(FollowConfig { addresses, tls })
}

impl ControllerConfig {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// If the file cannot be read, or has faults. The error holds all of them; it holds faults of values only if all
    /// keys and types are right.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &faults::read(path)?)
    }

    /// Returns true if the file at `path` is a controller's: it has a table `controller` and no table of a
    /// node.
    #[must_use]
    pub fn is_controllers(path: &Path) -> bool {
        let text = files::read_text(path).unwrap_or_default();
        let has = |table: &toml::Table, key| table.contains_key(key);
        let is_one = |table: &toml::Table| {
            has(table, "controller")
                && !["spine", "leaf", "agent"].iter().any(|key| has(table, key))
        };
        text.parse::<toml::Table>().is_ok_and(|table| is_one(&table))
    }

    /// Checks `text`. `path` is the name used in errors.
    ///
    /// # Errors
    /// If the text has faults. The error holds all of them; it holds faults of values only if all keys and types are
    /// right.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let refuse = |faults| ConfigError { path: path.to_owned(), faults };
        let file = File::read("controller", text).map_err(refuse)?;
        let mut faults = FaultCollector::new(file, text);
        let config = controller(&mut faults);
        let (_, settings) = faults.none_or_all().map_err(refuse)?;
        Ok(Self { settings, ..config })
    }
}

/// Returns the checked values of a controller's file, without `settings`.
fn controller(faults: &mut FaultCollector) -> ControllerConfig {
    let entry = Controller::of(&faults.file, faults.file.only("controller"));
    let control = control::control(faults);
    let tables = faults.file.of_section("control");
    let metrics = tables.filter_map(|table| faults.text(table, "metrics")).next();
    if let Some(at) = metrics {
        let allowed = "no `metrics`: a controller has none; each node serves its own";
        faults.note(&at, "control.metrics", quoted(&at), allowed);
    }
    let store = store(faults, &entry);
    let socket_beside = |path: &PathBuf| {
        let mut name = path.clone().into_os_string();
        name.push(".ctl");
        PathBuf::from(name)
    };
    let socket = match (&entry.socket, &store) {
        (Some(at), _) => Some(PathBuf::from(at.get_ref())),
        (None, StoreConfig::File(path)) => Some(socket_beside(path)),
        (None, StoreConfig::Etcd { .. }) => None,
    };
    if socket.is_none() && control.listen.is_none() {
        let allowed = "`socket`, or `listen` in [control], where nodes reach it";
        faults.note(&entry.id, "controller.socket", "none", allowed);
    }
    let id = faults.number(entry.table, "id");
    ControllerConfig { id, store, socket, control, settings: Settings::default() }
}

/// Returns the checked store: a file or etcd. An empty path stands for an invalid choice, which is a fault already.
fn store(faults: &mut FaultCollector, raw: &Controller) -> StoreConfig {
    let files = [&raw.etcd_ca, &raw.etcd_certificate, &raw.etcd_key];
    let tls = tls(faults, files, "controller", "`etcd_ca`, `etcd_certificate` and `etcd_key`");
    let lease_s = faults.number(raw.table, "lease_s");
    let prefix = raw.prefix.as_ref().map_or("/wedjat", |at| at.get_ref());
    if let Some(at) =
        raw.prefix.as_ref().filter(|_| !prefix.starts_with('/') || prefix.ends_with('/'))
    {
        faults.note(at, "controller.prefix", quoted(at), "a prefix such as /wedjat");
    }
    match (&raw.store, &raw.etcd) {
        (Some(at), None) => {
            if let Some(file) = files.into_iter().flatten().next() {
                let allowed = "none beside `store`: they are for `etcd`";
                faults.note(file, "controller.etcd_ca", quoted(file), allowed);
            }
            StoreConfig::File(at.get_ref().into())
        }
        (None, Some(at)) => {
            let is_url = |url: &str| {
                let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
                host.is_some_and(|host| !host.is_empty() && !host.starts_with([':', '/']))
            };
            for url in at.get_ref().iter().filter(|url| !is_url(url.get_ref())) {
                faults.note(
                    url,
                    "controller.etcd",
                    quoted(url),
                    "http://HOST:PORT or https://HOST:PORT",
                );
            }
            // An incomplete set of files is a fault already.
            let has_files = files.iter().any(|file| file.is_some());
            let is_tls = |url: &&Spanned<String>| url.get_ref().starts_with("https://");
            if let Some(url) = at.get_ref().iter().find(is_tls).filter(|_| !has_files) {
                let allowed = "`etcd_ca`, `etcd_certificate` and `etcd_key` beside it";
                faults.note(url, "controller.etcd", quoted(url), allowed);
            }
            if at.get_ref().is_empty() {
                faults.note(at, "controller.etcd", "no members", "at least one");
            }
            let members = at.get_ref().iter().map(|url| url.get_ref().clone()).collect();
            StoreConfig::Etcd { members, prefix: prefix.to_owned(), lease_s, tls }
        }
        (file, _) => {
            let found =
                if file.is_some() { "`store` and `etcd`" } else { "neither `store` nor `etcd`" };
            faults.note(&raw.id, "controller.store", found, "a file, or etcd's members");
            StoreConfig::File(PathBuf::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a controller's file.
    fn parse(text: &str) -> Result<ControllerConfig, String> {
        ControllerConfig::parse(Path::new("c.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_controllers_file_names_a_file_or_etcd() {
        let file = parse("[controller]\nid = 1\nstore = '/a/fabric'\n").unwrap();
        assert_eq!(file.store, StoreConfig::File("/a/fabric".into()));
        assert_eq!(file.socket, Some("/a/fabric.ctl".into()));
        let etcd = parse(
            "[controller]\nid = 1\netcd = ['http://10.0.9.1:2379']\nsocket = '/a/s'\nlease_s = 3\n",
        );
        let StoreConfig::Etcd { members, prefix, lease_s, tls } = etcd.unwrap().store else {
            panic!()
        };
        assert_eq!((members.len(), &prefix[..], lease_s, tls), (1, "/wedjat", 3, None));
    }

    #[test]
    fn faults_name_the_allowed_values() {
        for (text, says) in [
            (
                "id = 1\n",
                "c.toml:2: `controller.store`: found neither `store` nor `etcd`; allowed: a file",
            ),
            ("id = 1\nstore = '/a'\netcd = []\n", "found `store` and `etcd`"),
            (
                "id = 1\netcd = ['10.0.9.1']\nsocket = '/a'\n",
                "c.toml:3: `controller.etcd`: found `10.0.9.1`",
            ),
            ("id = 1\netcd = ['http://a:1']\n", "allowed: `socket`, or `listen` in [control]"),
            (
                "id = 1\netcd = ['http://']\nsocket = '/a'\n",
                "found `http://`; allowed: http://HOST",
            ),
            (
                "id = 1\netcd = ['http://a:1', 'https://b:1']\nsocket = '/a'\n",
                "found `https://b:1`; allowed: `etcd_ca`, `etcd_certificate` and `etcd_key` beside",
            ),
            (
                "id = 1\nstore = '/a'\nlease_s = 0\n",
                "`controller.lease_s`: found 0; allowed: 1 to 3600",
            ),
            (
                "id = 1\nstore = '/a'\netcd_ca = 'x'\n",
                "all of `etcd_ca`, `etcd_certificate` and `etcd_key`",
            ),
            ("id = 1\nstore = '/a'\nleader = 'x'\n", "the unknown key `leader`"),
            ("id = 1\nstore = '/a'\n[control]\nmetrics = '127.0.0.1:1'\n", "a controller has none"),
        ] {
            let error = parse(&format!("[controller]\n{text}")).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_are_sockets_and_urls() {
        for right in [
            "unix:/run/fabric.ctl",
            "https://controller1:7070",
            "http://127.0.0.1:7070",
            "http://[::1]:7070",
        ] {
            let address = ControllerAddress::parse(right);
            assert_eq!(address.map(|one| one.to_string()).as_deref(), Some(right));
        }
        for wrong in
            ["", "unix:run", "http://10.0.0.1:7070", "10.0.0.1:7070", "ftp://a", "https://"]
        {
            assert_eq!(ControllerAddress::parse(wrong), None, "{wrong}");
        }
        // A name and a password of a user precede the host.
        for wrong in ["http://localhost:x@10.0.0.1", "https://user@controller1:7070"] {
            assert_eq!(ControllerAddress::parse(wrong), None, "{wrong}");
        }
    }
}
