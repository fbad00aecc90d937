//! Cgroup controllers of this machine and their mount points. They confine a batch: a background job on the workers'
//! cores.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Cgroup controller that limits, freezes or measures a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Share of the cores.
    Cpu,
    /// Set of usable cores.
    Cpuset,
    /// Number of processes.
    Pids,
    /// Freezing and thawing.
    Freezer,
    /// Consumed CPU time.
    Cpuacct,
}

impl Controller {
    /// All controllers.
    pub const ALL: [Self; 5] = [Self::Cpu, Self::Cpuset, Self::Pids, Self::Freezer, Self::Cpuacct];

    /// Returns the kernel's name.
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

    /// Returns true if every cgroup of version 2 has the function. `cgroup.controllers` then does not list it.
    fn is_part_of_version_2(self) -> bool {
        matches!(self, Self::Freezer | Self::Cpuacct)
    }
}

/// Version of a cgroup hierarchy; the control files differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// Several hierarchies, each for one or more controllers.
    V1,
    /// One hierarchy for all controllers.
    V2,
}

/// Mount point of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Version of the hierarchy.
    pub version: Version,
    /// Root folder of the hierarchy.
    pub folder: PathBuf,
}

/// Functions that create and remove cgroups. The kernel adds the control files to a new folder, and removes a folder
/// only when it has no processes. Tests replace the functions to imitate the kernel in ordinary folders.
#[derive(Clone, Copy, Debug)]
pub struct FolderFunctions {
    /// Creates a cgroup.
    pub make: fn(&Path) -> io::Result<()>,
    /// Removes a cgroup.
    pub remove: fn(&Path) -> io::Result<()>,
}

impl FolderFunctions {
    /// Functions of the running kernel.
    pub const REAL: Self =
        Self { make: |path| fs::create_dir(path), remove: |path| fs::remove_dir(path) };
}

/// Mounted cgroup hierarchies.
#[derive(Clone, Debug)]
pub struct Hierarchies {
    /// Functions that create and remove cgroups in them.
    pub(super) folder_functions: FolderFunctions,
    /// Mount point of each controller that the machine has.
    mount_points: Vec<(Controller, MountPoint)>,
}

impl Hierarchies {
    /// Finds the hierarchies of this machine.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::below(Path::new("/"), FolderFunctions::REAL)
    }

    /// Finds the hierarchies of a machine with its files below `root`, by its list of mounts. Tests pass a folder with
    /// such files.
    #[must_use]
    pub fn below(root: &Path, folder_functions: FolderFunctions) -> Self {
        let mounts = fs::read_to_string(root.join("proc/mounts")).unwrap_or_default();
        let mut mount_points = Vec::new();
        let mut v2_folder = None;
        for line in mounts.lines() {
            // Fields: device, mount point, type, options.
            let mut fields = line.split(' ').skip(1);
            let (Some(mount_point), Some(kind), Some(options)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            // /proc/mounts writes a space as \040.
            let folder = root.join(mount_point.replace("\\040", " ").trim_start_matches('/'));
            match kind {
                "cgroup" => {
                    let has_option = |controller: &Controller| {
                        options.split(',').any(|option| option == controller.name())
                    };
                    let mount_point = MountPoint { version: Version::V1, folder };
                    let found = Controller::ALL.into_iter().filter(has_option);
                    mount_points.extend(found.map(|controller| (controller, mount_point.clone())));
                }
                "cgroup2" => v2_folder = v2_folder.or(Some(folder)),
                _ => {}
            }
        }
        // A controller mounted in version 1 is not available in version 2. Freezing and CPU accounting need no
        // controller in version 2. They come from version 2, unless version 1 has them. If version 1 has the CPU
        // controller, they never come from version 2.
        if let Some(folder) = v2_folder {
            let available =
                fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default();
            let has_cpu = |mount_points: &[(Controller, MountPoint)]| {
                mount_points.iter().any(|(controller, _)| *controller == Controller::Cpu)
            };
            let cpu_is_v1 = has_cpu(&mount_points);
            for controller in Controller::ALL {
                let is_available =
                    available.split_whitespace().any(|name| name == controller.name())
                        || (controller.is_part_of_version_2() && !cpu_is_v1);
                if is_available && !mount_points.iter().any(|(other, _)| *other == controller) {
                    let mount_point = MountPoint { version: Version::V2, folder: folder.clone() };
                    mount_points.push((controller, mount_point));
                }
            }
        }
        Self { folder_functions, mount_points }
    }

    /// Returns the mount point of a controller, or `None` if the machine lacks it.
    #[must_use]
    pub fn mount_point(&self, wanted: Controller) -> Option<&MountPoint> {
        self.mount_points
            .iter()
            .find(|(controller, _)| *controller == wanted)
            .map(|(_, mount_point)| mount_point)
    }

    /// Returns the controllers that this machine lacks.
    pub fn missing(&self) -> impl Iterator<Item = Controller> + '_ {
        Controller::ALL.into_iter().filter(|controller| self.mount_point(*controller).is_none())
    }

    /// Returns the roots of the hierarchies, each once.
    #[must_use]
    pub fn folders(&self) -> Vec<&MountPoint> {
        let mut folders: Vec<&MountPoint> = Vec::new();
        for (_, mount_point) in &self.mount_points {
            if !folders.contains(&mount_point) {
                folders.push(mount_point);
            }
        }
        folders
    }
}
