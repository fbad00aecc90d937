//! List of the folders of a batch's cgroup, one in each mounted hierarchy. The process that runs the batch saves the
//! list before it creates the folders. A later process can thus remove the folders that a killed one left behind.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::hierarchy::Version;

/// Prefix of the names of all cgroups made here.
pub const PREFIX: &str = "wedjat-";

/// Folders of a batch's cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupFolders(Vec<(Version, PathBuf)>);

impl CgroupFolders {
    /// Creates the list.
    pub(super) fn new(folders: impl Iterator<Item = (Version, PathBuf)>) -> Self {
        Self(folders.collect())
    }

    /// Returns the folders with absolute paths whose names begin with [`PREFIX`]. A damaged or forged list thus
    /// cannot remove other folders.
    pub(super) fn folders(&self) -> impl Iterator<Item = (Version, &Path)> {
        let is_ours = |path: &Path| {
            path.is_absolute()
                && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
        };
        self.0
            .iter()
            .map(|(version, path)| (*version, path.as_path()))
            .filter(move |folder| is_ours(folder.1))
    }

    /// Returns the paths of these folders, for output and checks.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.folders().map(|(_, path)| path)
    }
}
