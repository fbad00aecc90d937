//! Where this machine has which controller of cgroups.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What a batch is held by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Its share of the cores.
    Cpu,
    /// Which cores.
    Cpuset,
    /// How many processes.
    Pids,
    /// Whether it runs at all.
    Freezer,
    /// How much CPU time it has had.
    Cpuacct,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Cpu, Self::Cpuset, Self::Pids, Self::Freezer, Self::Cpuacct];

    /// As the kernel calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuset => "cpuset",
            Self::Pids => "pids",
            Self::Freezer => "freezer",
            Self::Cpuacct => "cpuacct",
        }
    }

    /// In version 2 each cgroup can be frozen and tells its CPU time, without a controller.
    fn is_part_of_version_2(self) -> bool {
        matches!(self, Self::Freezer | Self::Cpuacct)
    }
}

/// Of cgroups; each has other files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// A hierarchy for each controller.
    V1,
    /// One for all.
    V2,
}

/// Where the cgroups of a controller are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose files.
    pub version: Version,
    /// The root of the hierarchy.
    pub folder: PathBuf,
}

/// How folders come and go: a kernel fills those that are made, and takes those away that are empty of processes.
#[derive(Clone, Copy, Debug)]
pub struct System {
    /// Makes a cgroup.
    pub make: fn(&Path) -> io::Result<()>,
    /// Takes it away.
    pub remove: fn(&Path) -> io::Result<()>,
}

impl System {
    /// This machine's kernel.
    pub const REAL: Self =
        Self { make: |path| fs::create_dir(path), remove: |path| fs::remove_dir(path) };
}

/// The hierarchies of cgroups that are mounted.
#[derive(Clone, Debug)]
pub struct Hierarchies {
    pub(super) system: System,
    places: Vec<(Controller, Place)>,
}

impl Hierarchies {
    /// Those of this machine.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::below(Path::new("/"), System::REAL)
    }

    /// Those of the machine whose files are below `root`.
    #[must_use]
    pub fn below(root: &Path, system: System) -> Self {
        let mounts = fs::read_to_string(root.join("proc/mounts")).unwrap_or_default();
        let mut places = Vec::new();
        let mut all_in_one = None;
        for line in mounts.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(at), Some(kind), Some(options)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let folder = root.join(at.replace("\\040", " ").trim_start_matches('/'));
            match kind {
                "cgroup" => {
                    let of = |one: &Controller| options.split(',').any(|it| it == one.name());
                    let place = Place { version: Version::V1, folder };
                    let found = Controller::ALL.into_iter().filter(of);
                    places.extend(found.map(|controller| (controller, place.clone())));
                }
                "cgroup2" => all_in_one = all_in_one.or(Some(folder)),
                _ => {}
            }
        }
        // A controller that version 1 has is not version 2's; what needs no controller is taken from where the rest is.
        if let Some(folder) = all_in_one {
            let there = fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default();
            let has_cpu = |places: &[(Controller, Place)]| {
                places.iter().any(|(controller, _)| *controller == Controller::Cpu)
            };
            let is_old = has_cpu(&places);
            for controller in Controller::ALL {
                let is_there = there.split_whitespace().any(|name| name == controller.name())
                    || (controller.is_part_of_version_2() && !is_old);
                if is_there && !places.iter().any(|(other, _)| *other == controller) {
                    let place = Place { version: Version::V2, folder: folder.clone() };
                    places.push((controller, place));
                }
            }
        }
        Self { system, places }
    }

    /// Where a controller is; none where this machine lacks it.
    #[must_use]
    pub fn place(&self, of: Controller) -> Option<&Place> {
        self.places.iter().find(|(controller, _)| *controller == of).map(|(_, place)| place)
    }

    /// What this machine lacks.
    pub fn missing(&self) -> impl Iterator<Item = Controller> + '_ {
        Controller::ALL.into_iter().filter(|controller| self.place(*controller).is_none())
    }

    /// The roots of the hierarchies, each once.
    #[must_use]
    pub fn folders(&self) -> Vec<&Place> {
        let mut folders: Vec<&Place> = Vec::new();
        for (_, place) in &self.places {
            if !folders.contains(&place) {
                folders.push(place);
            }
        }
        folders
    }
}
