//! What was made for a batch, as it is written down before it is made.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::group::PREFIX;
use super::hierarchy::Version;

/// The folders of a cgroup of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made(Vec<(Version, PathBuf)>);

impl Made {
    pub(super) fn new(folders: impl Iterator<Item = (Version, PathBuf)>) -> Self {
        Self(folders.collect())
    }

    /// Those that have a name of ours: nothing else is ever taken away, whatever a file says.
    pub(super) fn folders(&self) -> impl Iterator<Item = (Version, &Path)> {
        let is_ours = |path: &Path| {
            path.is_absolute()
                && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
        };
        self.0
            .iter()
            .map(|(version, path)| (*version, path.as_path()))
            .filter(move |it| is_ours(it.1))
    }

    /// Their paths.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.folders().map(|(_, path)| path)
    }
}
