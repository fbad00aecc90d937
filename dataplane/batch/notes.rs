//! Folder of notes of batch jobs, which use the idle time of an agent's workers. Each job describes itself and its
//! cgroups in a *note*, a JSON file, before it creates the cgroups.
//!
//! Jobs of one agent run one at a time in the order of arrival. Each user has a folder and thus a separate queue. The
//! process of a job removes the job's note at its end. A *killed job* is a note without a live process: that process
//! ended without a complete clean-up. Each new job, of any agent, removes the leftovers of killed jobs: processes,
//! cgroups and notes.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use wedjat_cosched::mechanism::{CgroupFolders, FolderFunctions, Group, Process};

use super::CoschedError;

/// Environment variable that names another folder.
const VARIABLE: &str = "WEDJAT_COSCHED_DIR";
/// Time for the processes of a killed job to end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Waits for its turn among the jobs of its agent.
    Waiting,
    /// Running.
    Running,
    /// Its process ends the rest of the batch: the command has exited, or must end.
    Ending,
}

impl JobState {
    /// Returns the displayed name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Ending => "ending",
        }
    }
}

/// Note of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Note {
    /// Process of `wedjat cosched run`, which starts the job's command and controls it. Its id is the job's number.
    pub process: Process,
    /// Position in the queue: larger than that of each earlier job, of any agent.
    pub turn: u64,
    /// Path of the region of its agent, on whose cores it runs. Jobs with equal paths share a queue.
    pub agent: PathBuf,
    /// Process id of the agent when the job entered the queue.
    pub agent_pid: u64,
    /// Command.
    pub command: String,
    /// Policy that sets the share.
    pub policy: String,
    /// Latency objective.
    pub objective: String,
    /// State.
    pub state: JobState,
    /// Folders of its cgroup, one in each hierarchy. Written before their creation; empty until the job's turn.
    pub made: CgroupFolders,
    /// Latest figures.
    #[serde(default)]
    pub figures: Figures,
}

/// Figures of a job. The job's process *observes* the workers every 20 ms. At each observation it computes a percentile
/// of the latencies in the last 200 ms, the *window*. A *round* is the longer interval between two choices of the
/// share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Present share of the cores' time, from 0 to 1.
    pub share: f64,
    /// Limit of the share that the guard sets by the workers' load and latency, from 0 to 1. Policies without guard
    /// ignore it.
    pub allowed: f64,
    /// Fraction of the workers' time that their tasks need.
    pub load: f64,
    /// Latency percentile of the tasks that ended in the last round, in microseconds; `None` without such a task.
    pub tail_us: Option<f64>,
    /// Seconds since the start.
    pub elapsed_seconds: f64,
    /// Maximum run time in seconds; `None` without a limit.
    pub wall_seconds: Option<f64>,
    /// Seconds of CPU time.
    pub cpu_seconds: f64,
    /// Completed work in its measure.
    pub done: f64,
    /// Total work.
    pub work: Option<f64>,
    /// Number of observations with a completed task in their window.
    pub windows: u64,
    /// Number of these observations with a percentile above the objective.
    pub violations: u64,
    /// Number of the chooser's decisions about the share; 0 without a chooser.
    pub decisions: u64,
    /// Number of times that a thread's scheduling class or CPUs were restored.
    pub put_back: u64,
}

impl Note {
    /// Returns the job's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.pid
    }
}

/// Folder of notes.
#[derive(Clone, Debug)]
pub struct NotesFolder(PathBuf);

impl NotesFolder {
    /// Returns the path of this user's folder.
    fn path() -> PathBuf {
        let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let user = rustix::process::geteuid().as_raw();
        named.map_or_else(|| format!("/dev/shm/wedjat-cosched-{user}").into(), PathBuf::from)
    }

    /// Opens this user's folder: the one named by `WEDJAT_COSCHED_DIR`, else one in /dev/shm. Creates it if
    /// needed.
    ///
    /// # Errors
    /// If it cannot be created, is no folder, belongs to another user, or others may write to it.
    pub fn open() -> Result<Self, CoschedError> {
        Self::at(Self::path())
    }

    /// Opens the folder at this path.
    ///
    /// # Errors
    /// Same as for [`NotesFolder::open`].
    pub fn at(path: PathBuf) -> Result<Self, CoschedError> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(CoschedError::Notes { path, error });
            }
            _ => {}
        }
        let metadata = fs::symlink_metadata(&path)
            .map_err(|error| CoschedError::Notes { path: path.clone(), error })?;
        // Notes are trusted, so no other user may write here.
        let is_own = metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw();
        match is_own && metadata.mode() & 0o022 == 0 {
            true => Ok(Self(path)),
            false => Err(CoschedError::Foreign(path)),
        }
    }

    /// Returns the folder if it exists and no other user may write to it.
    #[must_use]
    pub fn existing() -> Option<Self> {
        let path = Self::path();
        path.is_dir().then(|| Self::at(path).ok()).flatten()
    }

    /// Returns a function that adds this path to an error of the system.
    fn fault(&self, path: &Path) -> impl FnOnce(io::Error) -> CoschedError + use<> {
        let path = path.to_owned();
        move |error| CoschedError::Notes { path, error }
    }

    /// Locks the queue until the file is closed.
    fn lock(&self) -> Result<File, CoschedError> {
        let path = self.0.join("lock");
        let file = File::create(&path).map_err(self.fault(&path))?;
        let locked = rustix::fs::flock(&file, FlockOperation::LockExclusive);
        locked.map_err(|error| self.fault(&path)(error.into()))?;
        Ok(file)
    }

    /// Returns the path of a job's progress counter.
    #[must_use]
    pub fn counter(&self, id: u32) -> PathBuf {
        self.0.join(format!("{id}.progress"))
    }

    /// Replaces a job's note.
    ///
    /// # Errors
    /// If the note cannot be written.
    pub fn write(&self, note: &Note) -> Result<(), CoschedError> {
        // Written beside and renamed, so that readers never see a part of it.
        let (path, new) =
            (self.0.join(format!("{}.json", note.id())), self.0.join(format!("{}.new", note.id())));
        let text = serde_json::to_vec(note).map_err(|error| self.fault(&path)(error.into()))?;
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(self.fault(&path))
    }

    /// Removes a job's note, the unfinished new version of it (`.new`), and its progress counter. Ignores missing
    /// files.
    pub fn forget(&self, id: u32) {
        for kind in ["json", "new", "progress"] {
            let _ = fs::remove_file(self.0.join(format!("{id}.{kind}")));
        }
    }

    /// Appends a job to the queue of its agent.
    ///
    /// # Errors
    /// If the queue cannot be locked, or its note not be written.
    pub fn enter(&self, note: &mut Note) -> Result<(), CoschedError> {
        let _lock = self.lock()?;
        note.turn = self.notes().last().map_or(0, |last| last.turn) + 1;
        self.write(note)
    }

    /// Marks a job as running if no live job of its agent precedes it. Returns true if so.
    ///
    /// # Errors
    /// If the queue cannot be locked, or its note not be written.
    pub fn take_turn(&self, note: &mut Note) -> Result<bool, CoschedError> {
        let _lock = self.lock()?;
        let notes = self.notes();
        // True for a note of the same agent's queue that comes before this one.
        let is_before = |other: &Note| {
            let comes_first = (other.turn, other.id()) < (note.turn, note.id());
            other.id() != note.id() && other.agent == note.agent && comes_first
        };
        if notes.iter().any(|other| is_before(other) && other.process.is_alive()) {
            return Ok(false);
        }
        note.state = JobState::Running;
        self.write(note).map(|()| true)
    }

    /// Returns the notes of all jobs, including killed ones, in the order of arrival. Skips files that it cannot read
    /// or parse.
    #[must_use]
    pub fn notes(&self) -> Vec<Note> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|kind| kind == "json"));
        let read = |path: PathBuf| serde_json::from_slice::<Note>(&fs::read(path).ok()?).ok();
        let mut notes: Vec<_> = files.filter_map(read).collect();
        notes.sort_by_key(|note| (note.turn, note.id()));
        notes
    }

    /// Returns the notes of jobs with a live process.
    #[must_use]
    pub fn jobs(&self) -> Vec<Note> {
        self.notes().into_iter().filter(|note| note.process.is_alive()).collect()
    }

    /// Removes the leftovers of killed jobs, and returns their notes. `folder_functions` create and remove cgroups: the
    /// kernel's, or a test's.
    ///
    /// Stops at the first job with a process that does not end, or with a cgroup that stays. Each wait takes up to
    /// 10 s. The queue stays locked meanwhile, so other jobs of this user cannot enter or start.
    ///
    /// # Errors
    /// If the queue cannot be locked, a process does not end, or a cgroup cannot be removed. The notes of this job and
    /// of later ones stay for the next call.
    pub fn clean(&self, folder_functions: FolderFunctions) -> Result<Vec<Note>, CoschedError> {
        let _lock = self.lock()?;
        let mut cleaned = Vec::new();
        for note in self.notes().into_iter().filter(|note| !note.process.is_alive()) {
            let group = Group::reopen(&note.made, folder_functions);
            if !group.kill(TIMEOUT, || {}) {
                return Err(CoschedError::Unkillable(group.processes().into_iter().collect()));
            }
            group.remove(TIMEOUT)?;
            self.forget(note.id());
            cleaned.push(note);
        }
        Ok(cleaned)
    }
}

/// Returns the started jobs (running or ending) of the agent with this process id, for its metrics and `wedjat top`.
/// Reads only this user's folder.
#[must_use]
pub fn jobs_of_agent(agent_pid: u64) -> Vec<Note> {
    let mut jobs = NotesFolder::existing().map(|folder| folder.jobs()).unwrap_or_default();
    jobs.retain(|note| note.agent_pid == agent_pid && note.state != JobState::Waiting);
    jobs
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// Returns the note of a waiting job.
    fn note(process: Process, agent: &str) -> Note {
        Note {
            process,
            turn: 0,
            agent: agent.into(),
            agent_pid: 1,
            command: "make".to_owned(),
            policy: "guard".to_owned(),
            objective: "p99=1ms".to_owned(),
            state: JobState::Waiting,
            made: CgroupFolders::default(),
            figures: Figures::default(),
        }
    }

    /// An idle process, killed on drop.
    struct Sleeper(Child);

    impl Sleeper {
        /// Starts the process.
        fn new() -> Self {
            Self(Command::new("sleep").arg("1000").spawn().unwrap())
        }

        /// Returns the process as notes identify it.
        fn process(&self) -> Process {
            Process::of(self.0.id()).unwrap()
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    // promise: batch.2
    #[test]
    fn jobs_of_an_agent_run_in_order() {
        let home = tempfile::tempdir().unwrap();
        let folder = NotesFolder::at(home.path().join("notes")).unwrap();
        let (one, two, other) = (Sleeper::new(), Sleeper::new(), Sleeper::new());
        let mut notes =
            [note(one.process(), "/a"), note(two.process(), "/a"), note(other.process(), "/b")];
        notes.iter_mut().for_each(|note| folder.enter(note).unwrap());
        let [first, second, elsewhere] = &mut notes;
        assert!(!folder.take_turn(second).unwrap(), "it came later");
        assert!(folder.take_turn(first).unwrap() && folder.take_turn(elsewhere).unwrap());
        assert_eq!(first.state, JobState::Running);
        assert!(!folder.take_turn(second).unwrap(), "the first one runs");
        let ids: Vec<_> = folder.jobs().iter().map(Note::id).collect();
        assert_eq!(ids, [first.id(), second.id(), elsewhere.id()]);
        // A killed job blocks no other job, and is cleaned up.
        drop(one);
        assert!(folder.take_turn(second).unwrap());
        assert_eq!(folder.jobs().len(), 2);
        let cleaned = folder.clean(FolderFunctions::REAL).unwrap();
        assert_eq!(cleaned.iter().map(Note::id).collect::<Vec<_>>(), [first.id()]);
        assert_eq!(folder.notes().len(), 2);
    }

    // promise: batch.2
    #[test]
    fn world_writable_folder_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("notes");
        NotesFolder::at(path.clone()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let error = NotesFolder::at(path.clone()).unwrap_err().to_string();
        assert!(error.contains("notes") && error.contains("WEDJAT_COSCHED_DIR"), "{error}");
        let link = home.path().join("link");
        std::os::unix::fs::symlink(home.path(), &link).unwrap();
        assert!(NotesFolder::at(link).is_err(), "a link may lead anywhere");
        assert!(
            NotesFolder::at(home.path().join("no/such"))
                .unwrap_err()
                .to_string()
                .contains("no/such")
        );
    }

    #[test]
    fn invalid_note_is_skipped() {
        let home = tempfile::tempdir().unwrap();
        let folder = NotesFolder::at(home.path().join("notes")).unwrap();
        fs::write(home.path().join("notes/7.json"), "{\"process\":").unwrap();
        assert!(folder.notes().is_empty());
        assert!(folder.clean(FolderFunctions::REAL).unwrap().is_empty());
    }
}
