//! Calls to the members of etcd, the servers of its cluster. The store in etcd makes all its calls here. If one member
//! does not answer soon, the call also goes to the next one. The first answer counts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};
use wedjat_admin::channel_to;

use crate::store::StoreError;

/// Timeout of one call, over all members.
const CALL_MAX: Duration = Duration::from_secs(5);
/// Maximum wait for one member before the call also goes to the next one. A shorter lease shortens the wait.
const STAGGER_MAX: Duration = Duration::from_secs(1);
/// Pause after all members have failed, and interval at which a standby checks for a leader.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Access to etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAccess {
    /// URLs of the members, for example `http://10.0.9.1:2379`.
    pub members: Vec<String>,
    /// Prefix of all keys.
    pub prefix: String,
    /// Duration of the leader's lease.
    pub lease: Duration,
    /// Files in PEM for https: etcd's authority, the controller's certificate, and its private key.
    pub tls: Option<[PathBuf; 3]>,
    /// Name that this controller shows to other controllers while it leads.
    pub name: String,
}

/// Members of etcd, with a connection to each one that answered.
#[derive(Debug)]
pub(super) struct Members {
    access: EtcdAccess,
    /// Index of the member that answered last.
    current: usize,
    /// Connection to each member, if there is one.
    channels: Vec<Option<Channel>>,
}

/// Reason why a call failed. The variants tell a write's caller whether etcd may have executed the write.
#[derive(Debug)]
pub(super) enum CallError {
    /// etcd refused the call. It executes nothing later, but a full etcd may have executed a write before.
    Refused(StoreError),
    /// No member was reached. Nothing was sent.
    Unreached(StoreError),
    /// No answer arrived. The call may take effect at any later time, since the kernel repeats undelivered
    /// data.
    Unknown(StoreError),
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(error) | CallError::Unreached(error) | CallError::Unknown(error) => {
                error
            }
        }
    }
}

/// Reason why one member did not answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The connection failed. Nothing was sent.
    #[error("{0}")]
    Connect(String),
    /// The call failed.
    #[error("{}", .0.message())]
    Call(Status),
}

impl Failure {
    /// Returns true if the member will not execute the call after this failure. Refusals by etcd itself begin with
    /// `etcdserver: `; other errors may come from the connection, after etcd has received the call.
    fn is_definite(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Call(status) => {
                !is_of_member(status) && status.message().starts_with("etcdserver: ")
            }
        }
    }
}

/// Member and outcome of a call to it.
type Attempt<T> = (usize, Result<(Channel, T), Failure>);

/// Attempts of one call, each to one member.
struct Attempts<T> {
    /// Attempts without a result yet. Dropping the set cancels them.
    running: JoinSet<Attempt<T>>,
    /// Number of attempts so far.
    started: usize,
    /// Number of attempts without a definite outcome, by member: running ones, and failed ones that the member may
    /// still execute.
    open: Vec<usize>,
    /// Latest failure of each member.
    failures: BTreeMap<usize, Failure>,
}

/// Returns true for a failure of one member or of its connection. Another member may answer instead. Any other status
/// is a refusal by etcd as a whole.
fn is_of_member(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Cancelled
    )
}

/// Returns the error of a call, with advice by its code. `action` is the verb of the message, such as `write`.
fn unavailable(action: &str, status: &Status) -> StoreError {
    let (code, message) = (status.code(), status.message());
    let fix = match code {
        Code::ResourceExhausted => {
            "it is full: compact and defragment it, raise its quota, and disarm its alarm (`etcdctl alarm disarm`)"
        }
        Code::Unauthenticated | Code::PermissionDenied => {
            "it does not let this controller in: see `etcd_certificate`"
        }
        _ => "it is looked for again; what runs goes on meanwhile",
    };
    StoreError::Unavailable(format!("etcd did not {action} ({code:?}: {message}); {fix}"))
}

impl Members {
    /// Creates the members without connections.
    pub fn new(access: EtcdAccess) -> Self {
        let channels = access.members.iter().map(|_| None).collect();
        Self { access, current: 0, channels }
    }

    /// Returns the same members without connections, for another task. Slow calls of this one then do not delay that
    /// task.
    pub fn separate(&self) -> Self {
        Self { current: self.current, ..Self::new(self.access.clone()) }
    }

    /// Calls the member that answered last. Without an answer, the call goes to one more member after each
    /// [`Self::stagger`], and at once after a failure. After a failed round over all members a pause follows.
    /// `call` must be harmless even if several members execute it, or one of them late.
    pub async fn call<T, C, F>(&mut self, action: &str, call: C) -> Result<T, CallError>
    where
        T: Send + 'static,
        C: Fn(Channel) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<T, Status>> + Send,
    {
        let (count, until) = (self.channels.len(), Instant::now() + CALL_MAX);
        let (running, failures) = (JoinSet::new(), BTreeMap::new());
        let mut attempts = Attempts { running, started: 0, open: vec![0; count], failures };
        let result = loop {
            let index = (self.current + attempts.started) % count;
            attempts.started += 1;
            attempts.open[index] += 1;
            attempts.running.spawn(self.attempt(index, call.clone()));
            // Time of the next attempt, unless an answer or a failure comes first.
            let next = until.min(Instant::now() + self.stagger());
            if let Some(result) = self.first_answer(&mut attempts, action, next).await {
                break result;
            }
            if Instant::now() >= until {
                break Err(self.unanswered(action, &attempts));
            }
        };
        // An attempt without outcome may block its connection, so the next call makes a new one.
        for (channel, open) in self.channels.iter_mut().zip(&attempts.open) {
            if *open > 0 {
                *channel = None;
            }
        }
        result
    }

    /// Waits for the first answer. Returns `None` when the next attempt is due: at `next`, or earlier after a
    /// failure.
    async fn first_answer<T: Send + 'static>(
        &mut self,
        attempts: &mut Attempts<T>,
        action: &str,
        mut next: Instant,
    ) -> Option<Result<T, CallError>> {
        let count = self.channels.len();
        loop {
            let (index, outcome) = tokio::select! {
                Some(Ok(attempt)) = attempts.running.join_next() => attempt,
                () = sleep_until(next) => return None,
            };
            let failure = match outcome {
                Ok((channel, answer)) => {
                    attempts.open[index] -= 1;
                    self.channels[index] = Some(channel);
                    self.note_answer(index, &attempts.failures);
                    return Some(Ok(answer));
                }
                Err(failure) => failure,
            };
            self.channels[index] = None;
            // An indefinite failure stays counted: the member may still execute the call.
            attempts.open[index] -= usize::from(failure.is_definite());
            if let Failure::Call(status) = &failure
                && !is_of_member(status)
            {
                let error = unavailable(action, status);
                let is_open = attempts.open.iter().any(|open| *open > 0);
                return Some(Err(if is_open {
                    CallError::Unknown(error)
                } else {
                    CallError::Refused(error)
                }));
            }
            attempts.failures.insert(index, failure);
            // Without another member, the caller decides when to retry.
            if count == 1 {
                return Some(Err(self.unanswered(action, attempts)));
            }
            // The next member follows at once, but a new round over all members after a pause.
            if !attempts.started.is_multiple_of(count) {
                return None;
            }
            next = next.min(Instant::now() + RETRY_PAUSE);
        }
    }

    /// Stores the index of the answering member as the first one of the next call. Logs a change, with the failure of
    /// the earlier member.
    fn note_answer(&mut self, index: usize, failures: &BTreeMap<usize, Failure>) {
        let before = std::mem::replace(&mut self.current, index);
        if before != index {
            let late = || "it is late".to_owned();
            let reason = failures.get(&before).map_or_else(late, ToString::to_string);
            let members = &self.access.members;
            log::warn!(
                "a member of etcd does not answer; another is asked: {}: {reason}; {} answers",
                members[before],
                members[index]
            );
        }
    }

    /// Returns the future of one call to the member with this index, over its connection or a new one.
    fn attempt<T, C, F>(
        &self,
        index: usize,
        call: C,
    ) -> impl Future<Output = Attempt<T>> + Send + 'static
    where
        T: Send + 'static,
        C: Fn(Channel) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, Status>> + Send,
    {
        let channel = self.channels[index].clone();
        let (url, tls) = (self.access.members[index].clone(), self.access.tls.clone());
        let answer_max = self.answer_max();
        async move {
            let exchange = async {
                let channel = match channel {
                    Some(channel) => channel,
                    None => {
                        // Without pings: etcd permits one in 5 s at most, and `answer_max` bounds the call.
                        let channel = channel_to(&url, tls.as_ref(), None).await;
                        channel.map_err(Failure::Connect)?
                    }
                };
                let answer = call(channel.clone()).await.map_err(Failure::Call)?;
                Ok((channel, answer))
            };
            let late = || Status::deadline_exceeded(format!("no answer for {answer_max:?}"));
            let outcome = timeout(answer_max, exchange).await;
            (index, outcome.unwrap_or_else(|_| Err(Failure::Call(late()))))
        }
    }

    /// Returns the timeout of one member's answer. With other members it is at most a third of the lease, so that
    /// several attempts fit into a lease.
    fn answer_max(&self) -> Duration {
        if self.channels.len() > 1 { CALL_MAX.min(self.access.lease / 3) } else { CALL_MAX }
    }

    /// Returns the time without an answer after which a call also goes to the next member. A twelfth of the lease lets
    /// a call reach several members within the lease.
    fn stagger(&self) -> Duration {
        match self.channels.len() {
            1 => CALL_MAX,
            _ => (self.access.lease / 12).clamp(RETRY_PAUSE, STAGGER_MAX),
        }
    }

    /// Returns the error of a call that no member answered. [`CallError::Unknown`] if a member may still execute it.
    fn unanswered<T>(&self, action: &str, attempts: &Attempts<T>) -> CallError {
        let error = self.reason(action, &attempts.failures);
        if attempts.open.iter().all(|open| *open == 0) {
            CallError::Unreached(error)
        } else {
            CallError::Unknown(error)
        }
    }

    /// Returns the reason why no member answered: the failed call of the first member with one, else the failed
    /// connections of all members. Without any failure, the call has timed out.
    fn reason(&self, action: &str, failures: &BTreeMap<usize, Failure>) -> StoreError {
        let status = failures.values().find_map(|failure| match failure {
            Failure::Call(status) => Some(status),
            Failure::Connect(_) => None,
        });
        if let Some(status) = status {
            return unavailable(action, status);
        }
        if failures.is_empty() {
            return unavailable(
                action,
                &Status::deadline_exceeded(format!("no answer for {CALL_MAX:?}")),
            );
        }
        let members = &self.access.members;
        let reasons =
            failures.iter().map(|(index, failure)| format!("{}: {failure}", members[*index]));
        let reasons = reasons.collect::<Vec<_>>().join("; ");
        StoreError::Unavailable(format!(
            "no member of etcd can be reached ({reasons}); it is looked for again; what runs goes on meanwhile"
        ))
    }
}
