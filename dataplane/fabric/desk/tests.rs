//! Tests of the desk, over a store in memory. The desk is a controller's task: it waits for the lead, leads, and
//! executes commands in turn. A lead has a number, the term. It ends with the lease that the store grants. The tests
//! control the clock of the lease and the store's answers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use super::*;
use crate::TIMEOUT;
use crate::generated as proto;
use crate::generated::fabric_server::Fabric as Calls;
use crate::lease::{Clock, Renewal};
use crate::service::Service;

/// Content and behaviour of a store.
#[derive(Debug, Default)]
struct Content {
    fabric: Fabric,
    /// Version of the last compaction.
    base: u64,
    /// Number of successful compactions.
    compactions: u64,
    /// True if the store has no room for a whole fabric.
    is_full: bool,
    /// Number of compactions that a full store refused.
    failed_compactions: u64,
    /// Number of appends.
    appends: u64,
    /// Term of the last lead.
    terms: u64,
    /// True if appends and compactions never complete.
    hangs: bool,
    /// True while another controller leads.
    is_taken: bool,
    /// Renewal of the current lease, held as by a real store. No test renews the lease: the test's clock ends it.
    renewal: Option<Renewal>,
}

/// Store in memory. The test and the desk each have a clone with the same content.
#[derive(Clone)]
struct FakeStore {
    content: Arc<Mutex<Content>>,
    /// Notified when a call hangs.
    hung: Arc<Notify>,
    /// Clock of the leases, which the test sets.
    clock: Clock,
    /// Lease of the last lead; ended before the first one.
    lease: Lease,
}

impl FakeStore {
    /// Creates an empty store whose leases are measured by `clock`.
    fn new(clock: Clock) -> Self {
        let lease = Lease::new(clock, Duration::ZERO).1;
        Self { content: Arc::default(), hung: Arc::default(), clock, lease }
    }

    /// Locks the content.
    fn content(&self) -> std::sync::MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    /// Returns at once, or never if the store hangs.
    async fn answer(&self) {
        if self.content().hangs {
            self.hung.notify_one();
            std::future::pending().await
        }
    }
}

/// Duration of a lease, by the test's clock.
const LEASE: Duration = Duration::from_secs(5);

impl Store for FakeStore {
    /// Leads with the next term and a new lease. Waits forever if another controller leads.
    async fn lead(&mut self, _: impl Fn(&str) + Send + Sync) -> Result<u64, StoreError> {
        if self.content().is_taken {
            std::future::pending::<()>().await;
        }
        let (renewal, lease) = Lease::new(self.clock, (self.clock)() + LEASE);
        self.lease = lease;
        let mut content = self.content();
        content.renewal = Some(renewal);
        content.terms += 1;
        Ok(content.terms)
    }

    fn lease(&self) -> Lease {
        self.lease.clone()
    }

    async fn load(&mut self) -> Result<Fabric, StoreError> {
        Ok(self.content().fabric.clone())
    }

    fn base(&self) -> u64 {
        self.content().base
    }

    /// Applies the events to the stored fabric, unless the store hangs.
    async fn append(&mut self, version: u64, events: &[Event]) -> Result<(), StoreError> {
        self.answer().await;
        let mut content = self.content();
        events.iter().for_each(|event| content.fabric.apply(event));
        content.fabric.version = version;
        content.appends += 1;
        Ok(())
    }

    /// Records the version of the compaction, unless the store hangs. Fails if the store is full.
    async fn compact(&mut self, fabric: &Fabric) -> Result<(), StoreError> {
        self.answer().await;
        let mut content = self.content();
        if content.is_full {
            content.failed_compactions += 1;
            return Err(StoreError::Unavailable("it is full".to_owned()));
        }
        content.base = fabric.version;
        content.compactions += 1;
        Ok(())
    }
}

/// Receiver of the answer to a command.
type Answer = oneshot::Receiver<Result<CommandResult, AskError>>;

/// Desk with its store and its channels. Dropping it ends the desk.
struct Site {
    store: FakeStore,
    /// Requests to the desk.
    asks: mpsc::Sender<CommandRequest>,
    /// Role that the desk publishes: leader or standby.
    reader: RoleReader,
    /// Desk; `None` once it runs.
    desk: Option<Desk<FakeStore>>,
    /// Set to true to stop the desk.
    stop: watch::Sender<bool>,
}

impl Site {
    /// Creates the desk, which does not run yet.
    fn new(clock: Clock) -> Self {
        let store = FakeStore::new(clock);
        let (asks, requests) = mpsc::channel(64);
        let (role, reader) = RoleReader::new();
        let desk = Desk {
            store: store.clone(),
            requests,
            role,
            known: Position::default(),
            compaction_tried: 0,
        };
        Self { store, asks, reader, desk: Some(desk), stop: watch::channel(false).0 }
    }

    /// Starts the desk if it does not run yet, and waits until it leads.
    async fn lead(&mut self) {
        if let Some(desk) = self.desk.take() {
            tokio::spawn(desk.run(self.stop.subscribe()));
        }
        self.until(|role| matches!(role, ControllerRole::Leader { .. })).await;
    }

    /// Waits for a role. The reader's first `changed` returns at once, so that no role is missed.
    async fn until(&self, is_reached: impl Fn(&ControllerRole) -> bool) {
        let mut reader = self.reader.restarted();
        while !is_reached(&self.reader.now()) {
            reader.changed().await.unwrap();
        }
    }

    /// Sends a command to the desk. Returns the receiver of the answer.
    fn ask(&self, command: &str, if_version: Option<u64>) -> Answer {
        let (answer, answered) = oneshot::channel();
        let request = Request::Command(command.parse().unwrap());
        self.asks.try_send(CommandRequest { request, if_version, answer }).unwrap();
        answered
    }

    /// Returns true if the controller leads now.
    fn is_leader(&self) -> bool {
        matches!(self.reader.now(), ControllerRole::Leader { .. })
    }
}

/// Runs a test with a timeout.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, test).await.unwrap() });
}

// promise: controller.3
#[test]
fn lease_ends_all_answers_while_append_hangs() {
    // Time of the lease's clock in seconds.
    static NOW: AtomicU64 = AtomicU64::new(0);
    let mut site = Site::new(|| Duration::from_secs(NOW.load(Ordering::Relaxed)));
    run(async {
        site.lead().await;
        site.ask("add-leaf id=1 ip=10.0.1.1", None).await.unwrap().unwrap();
        site.store.content().hangs = true;
        let answer = site.ask("add-leaf id=2 ip=10.0.1.2", None);
        site.store.hung.notified().await;
        let mut follower = site.reader.restarted();
        follower.changed().await.unwrap(); // the current role
        assert!(site.is_leader());
        NOW.store(LEASE.as_secs(), Ordering::Relaxed);
        // Each read compares the lease with the clock: the desk need not run first.
        assert!(!site.is_leader());
        assert!(matches!(follower.changed().await, Some(ControllerRole::Standby(_))));
        site.store.content().hangs = false;
        let refused = answer.await.unwrap().unwrap_err().to_string();
        assert!(refused.contains("whether the command is kept is not known"), "{refused}");
        assert_eq!(site.store.content().appends, 1, "the write that hung was given up");
    });
}

// promise: controller.3
#[test]
fn lease_ends_lead_while_compaction_hangs() {
    // Time of the lease's clock in seconds.
    static NOW: AtomicU64 = AtomicU64::new(0);
    let mut site = Site::new(|| Duration::from_secs(NOW.load(Ordering::Relaxed)));
    run(async {
        // A log of `COMPACT` versions, so that a compaction is due.
        site.store.content().fabric.version = COMPACT;
        site.lead().await;
        site.store.content().hangs = true;
        // The required version 0 is not the fabric's: the desk refuses the command without an append. Then it compacts.
        let answer = site.ask("add-leaf id=1 ip=10.0.1.1", Some(0));
        assert!(answer.await.unwrap().is_err());
        site.store.hung.notified().await;
        NOW.store(LEASE.as_secs(), Ordering::Relaxed);
        assert!(!site.is_leader());
        site.store.content().hangs = false;
        site.until(|role| matches!(role, ControllerRole::Leader { term: 2, .. })).await;
    });
}

// promise: controller.3
#[test]
fn queued_asks_are_refused_after_the_lease() {
    // Time of the lease's clock in seconds.
    static NOW: AtomicU64 = AtomicU64::new(0);
    let mut site = Site::new(|| Duration::from_secs(NOW.load(Ordering::Relaxed)));
    run(async {
        site.lead().await;
        site.ask("add-leaf id=1 ip=10.0.1.1", None).await.unwrap().unwrap();
        // The desk cannot lead again: its store waits for another leader.
        site.store.content().is_taken = true;
        // The desk would execute the first request without an append, and refuse the second one for its version.
        // No task runs between the requests and the end of the lease, as in a stopped process.
        let commands = [("restore-leaf id=1", None), ("add-leaf id=2 ip=10.0.1.2", Some(9))];
        let answers = commands.map(|(command, if_version)| site.ask(command, if_version));
        NOW.store(LEASE.as_secs(), Ordering::Relaxed);
        for answer in answers {
            let refused = answer.await.unwrap().unwrap_err();
            assert!(matches!(refused, AskError::Standby(_)), "{refused}");
        }
    });
}

// promise: controller.2
#[test]
fn short_leads_compact_the_log() {
    // Time of the lease's clock in seconds.
    static NOW: AtomicU64 = AtomicU64::new(0);
    let mut site = Site::new(|| Duration::from_secs(NOW.load(Ordering::Relaxed)));
    run(async {
        // Four leads of a third of `COMPACT` versions each. Adding and removing a leaf in turn changes the
        // fabric with each command.
        let mut version = 0;
        for lead in 1..=4 {
            site.lead().await;
            for _ in 0..COMPACT / 3 {
                let verb =
                    if version % 2 == 0 { "add-leaf id=1 ip=10.0.1.1" } else { "remove-leaf id=1" };
                site.ask(verb, None).await.unwrap().unwrap();
                version += 1;
            }
            NOW.fetch_add(LEASE.as_secs(), Ordering::Relaxed);
            site.until(|role| matches!(role, ControllerRole::Leader { term, .. } if *term > lead))
                .await;
        }
        // 4 * 341 versions: one compaction, at version `COMPACT`.
        let content = site.store.content();
        assert_eq!((content.compactions, content.base), (1, COMPACT));
    });
}

// promise: controller.3
#[test]
fn failed_compaction_waits_for_more_versions() {
    // Time of the lease's clock in seconds.
    static NOW: AtomicU64 = AtomicU64::new(0);
    let mut site = Site::new(|| Duration::from_secs(NOW.load(Ordering::Relaxed)));
    run(async {
        site.store.content().fabric.version = COMPACT;
        site.store.content().is_full = true;
        site.lead().await;
        // The compaction after the first request fails, and ends the lead.
        assert!(site.ask("add-leaf id=1 ip=10.0.1.1", Some(0)).await.unwrap().is_err());
        site.until(|role| matches!(role, ControllerRole::Leader { term: 2, .. })).await;
        // No further compaction is due before `COMPACT` more versions. The desk has handled each request completely,
        // with its compaction, when it answers the next one.
        for version in COMPACT..2 * COMPACT {
            let verb =
                if version % 2 == 0 { "add-leaf id=1 ip=10.0.1.1" } else { "remove-leaf id=1" };
            assert_eq!(site.store.content().failed_compactions, 1, "version {version}");
            site.ask(verb, None).await.unwrap().unwrap();
        }
        site.until(|role| matches!(role, ControllerRole::Leader { term: 3, .. })).await;
        assert_eq!(site.store.content().failed_compactions, 2);
    });
}

// promise: controller.3
#[test]
fn stop_during_an_append_leaves_its_outcome_unknown() {
    // Time of the lease's clock in seconds.
    static NOW: AtomicU64 = AtomicU64::new(0);
    let mut site = Site::new(|| Duration::from_secs(NOW.load(Ordering::Relaxed)));
    run(async {
        site.lead().await;
        site.store.content().hangs = true;
        let service = Service::new(1, false, site.asks.clone(), site.reader.clone());
        let add = |id: u16| {
            let command = format!("add-leaf id={id} ip=10.0.1.{id}");
            tonic::Request::new(proto::CommandRequest { command, if_version: None })
        };
        let (result, ()) = tokio::join!(service.command(add(1)), async {
            site.store.hung.notified().await;
            site.stop.send(true).unwrap();
        });
        let status = result.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert!(status.message().contains("whether the command is kept is not known"), "{status}");
        // A command after the end never reaches the store.
        let status = service.command(add(2)).await.unwrap_err();
        assert_eq!(status.message(), "this controller stands by: it ends");
    });
}
