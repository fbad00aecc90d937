//! The folder in which each job notes what it is and what it makes, before it makes it.
//!
//! Jobs of one agent run one at a time, in the order in which they came. Whoever looks takes away what killed ones left: their
//! processes, their cgroups, their notes.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use wedjat_cosched::mechanism::{Group, Made, Process, System};

use super::CoschedError;

/// Names another folder.
const VARIABLE: &str = "WEDJAT_COSCHED_DIR";
/// How long the processes of a killed job have to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Another one of its agent runs.
    Waiting,
    /// It runs.
    Running,
    /// It has been told to end.
    Ending,
}

impl JobState {
    /// As it is shown.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Ending => "ending",
        }
    }
}

/// What a job tells of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Note {
    /// Who runs it; its number is the job's.
    pub process: Process,
    /// Its turn in the queue: larger than that of all that were there when it came.
    pub turn: u64,
    /// Its agent, as the region's path.
    pub agent: PathBuf,
    /// The agent's process.
    pub agent_pid: u64,
    /// What runs.
    pub command: String,
    /// Who says how much it gets.
    pub policy: String,
    /// What the workers are owed.
    pub objective: String,
    /// Where it stands.
    pub state: JobState,
    /// The cgroups made for it.
    pub made: Made,
    /// What it does.
    #[serde(default)]
    pub figures: Figures,
}

/// What a job does, as it was noted last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The part of the cores that it may have, from 0 to 1.
    pub share: f64,
    /// What the guard allows.
    pub allowed: f64,
    /// The part of the workers' time that their tasks need.
    pub load: f64,
    /// The percentile that has an objective, in microseconds, of the last second.
    pub tail_us: Option<f64>,
    /// Seconds since it began.
    pub elapsed_seconds: f64,
    /// Seconds that it may take.
    pub wall_seconds: Option<f64>,
    /// Seconds of CPU time that it has had.
    pub cpu_seconds: f64,
    /// What is done of it, by its measure.
    pub done: f64,
    /// What there is to do.
    pub work: Option<f64>,
    /// Looks at the workers.
    pub windows: u64,
    /// Looks at which they missed the objective.
    pub violations: u64,
    /// Shares that were chosen.
    pub decisions: u64,
    /// Threads that had to be put back into their class or onto their cores.
    pub put_back: u64,
}

impl Note {
    /// The job's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.pid
    }
}

/// The folder of notes.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    fn path() -> PathBuf {
        let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let user = rustix::process::geteuid().as_raw();
        named.map_or_else(|| format!("/dev/shm/wedjat-cosched-{user}").into(), PathBuf::from)
    }

    /// This user's: that which `WEDJAT_COSCHED_DIR` names, else one in /dev/shm, which is made if it is not there.
    ///
    /// # Errors
    /// When it can't be made, or is another user's.
    pub fn open() -> Result<Self, CoschedError> {
        Self::at(Self::path())
    }

    /// The folder at this path.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn at(path: PathBuf) -> Result<Self, CoschedError> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(CoschedError::Notes { path, error });
            }
            _ => {}
        }
        let found = fs::symlink_metadata(&path)
            .map_err(|error| CoschedError::Notes { path: path.clone(), error })?;
        // What others may write here would be believed.
        let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        match is_own && found.mode() & 0o022 == 0 {
            true => Ok(Self(path)),
            false => Err(CoschedError::Foreign(path)),
        }
    }

    /// The folder if it is there already, for those who only look.
    #[must_use]
    pub fn existing() -> Option<Self> {
        let path = Self::path();
        path.is_dir().then(|| Self::at(path).ok()).flatten()
    }

    fn fault(&self, path: &Path) -> impl FnOnce(io::Error) -> CoschedError + use<> {
        let path = path.to_owned();
        move |error| CoschedError::Notes { path, error }
    }

    /// Keeps others from changing the queue for as long as the file lives.
    fn lock(&self) -> Result<File, CoschedError> {
        let path = self.0.join("lock");
        let file = File::create(&path).map_err(self.fault(&path))?;
        let locked = rustix::fs::flock(&file, FlockOperation::LockExclusive);
        locked.map_err(|error| self.fault(&path)(error.into()))?;
        Ok(file)
    }

    /// Where the counter of a job's progress is.
    #[must_use]
    pub fn counter(&self, id: u32) -> PathBuf {
        self.0.join(format!("{id}.progress"))
    }

    /// Writes a job's note in the place of its last one.
    ///
    /// # Errors
    /// When that can't be done.
    pub fn write(&self, note: &Note) -> Result<(), CoschedError> {
        let (path, new) =
            (self.0.join(format!("{}.json", note.id())), self.0.join(format!("{}.new", note.id())));
        let text = serde_json::to_vec(note).map_err(|error| self.fault(&path)(error.into()))?;
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(self.fault(&path))
    }

    /// Takes a job's note away, and what lies beside it.
    pub fn forget(&self, id: u32) {
        for kind in ["json", "new", "progress"] {
            let _ = fs::remove_file(self.0.join(format!("{id}.{kind}")));
        }
    }

    /// Puts a job into the queue of its agent: whoever comes later has a later place.
    ///
    /// # Errors
    /// When its note can't be written.
    pub fn enter(&self, note: &mut Note) -> Result<(), CoschedError> {
        let _lock = self.lock()?;
        note.turn = self.notes().last().map_or(0, |last| last.turn) + 1;
        self.write(note)
    }

    /// Marks a job as running if it is its turn.
    ///
    /// # Errors
    /// When the queue can't be read.
    pub fn take_turn(&self, note: &mut Note) -> Result<bool, CoschedError> {
        let _lock = self.lock()?;
        let others = self.notes();
        let is_before = |other: &Note| {
            let comes_first = (other.turn, other.id()) < (note.turn, note.id());
            other.id() != note.id() && other.agent == note.agent && comes_first
        };
        if others.iter().any(|other| is_before(other) && other.process.is_alive()) {
            return Ok(false);
        }
        note.state = JobState::Running;
        self.write(note).map(|()| true)
    }

    /// All jobs, in the order in which they came; those that were killed, too.
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

    /// Jobs whose process lives.
    #[must_use]
    pub fn jobs(&self) -> Vec<Note> {
        self.notes().into_iter().filter(|note| note.process.is_alive()).collect()
    }

    /// Takes away what killed jobs left; their notes. A job whose processes do not end keeps its note, for the next time.
    ///
    /// # Errors
    /// When something of one can't be taken away.
    pub fn clean(&self, system: System) -> Result<Vec<Note>, CoschedError> {
        let _lock = self.lock()?;
        let mut cleaned = Vec::new();
        for note in self.notes().into_iter().filter(|note| !note.process.is_alive()) {
            let group = Group::left(&note.made, system);
            if !group.kill(PATIENCE, || {}) {
                return Err(CoschedError::Unkillable(group.processes().into_iter().collect()));
            }
            group.remove(PATIENCE)?;
            self.forget(note.id());
            cleaned.push(note);
        }
        Ok(cleaned)
    }
}

/// Jobs that run beside the workers of the agent of this process.
#[must_use]
pub fn jobs_beside(agent_pid: u64) -> Vec<Note> {
    let mut jobs = Folder::existing().map(|folder| folder.jobs()).unwrap_or_default();
    jobs.retain(|note| note.agent_pid == agent_pid && note.state != JobState::Waiting);
    jobs
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

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
            made: Made::default(),
            figures: Figures::default(),
        }
    }

    /// A process that does nothing, ended when dropped.
    struct Sleeper(Child);

    impl Sleeper {
        fn new() -> Self {
            Self(Command::new("sleep").arg("1000").spawn().unwrap())
        }

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

    #[test]
    fn jobs_of_an_agent_run_one_after_the_other_as_they_came() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::at(home.path().join("notes")).unwrap();
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
        // Killed, it keeps nobody from running, and is cleaned away.
        drop(one);
        assert!(folder.take_turn(second).unwrap());
        assert_eq!(folder.jobs().len(), 2);
        let cleaned = folder.clean(System::REAL).unwrap();
        assert_eq!(cleaned.iter().map(Note::id).collect::<Vec<_>>(), [first.id()]);
        assert_eq!(folder.notes().len(), 2);
    }

    #[test]
    fn a_folder_that_others_may_write_into_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("notes");
        Folder::at(path.clone()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Folder::at(path.clone()).unwrap_err().to_string();
        assert!(error.contains("notes") && error.contains("WEDJAT_COSCHED_DIR"), "{error}");
        let link = home.path().join("link");
        std::os::unix::fs::symlink(home.path(), &link).unwrap();
        assert!(Folder::at(link).is_err(), "a link may lead anywhere");
        assert!(
            Folder::at(home.path().join("no/such")).unwrap_err().to_string().contains("no/such")
        );
    }

    #[test]
    fn what_is_no_note_is_passed_over() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::at(home.path().join("notes")).unwrap();
        fs::write(home.path().join("notes/7.json"), "{\"process\":").unwrap();
        assert!(folder.notes().is_empty());
        assert!(folder.clean(System::REAL).unwrap().is_empty());
    }
}
