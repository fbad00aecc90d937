//! Clients with commands and reads, followers that receive the controllers' messages, and the history of
//! both.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use rand::seq::SliceRandom as _;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use wedjat::controller::generated::fabric_client::FabricClient;
use wedjat::controller::generated::follow_request::Message;
use wedjat::controller::generated::{
    Acknowledge, CommandRequest, FollowReply, FollowRequest, TopologyRequest,
};
use wedjat::controller::{NodeId, Position, View, delta, hello};
use wedjat_pktgen::seed::{Stream, StreamSeed};

use super::record::{self, Answer, History, Key, Kind, Operation, Request, Update};

/// Timeout of an answer, in leases. It exceeds the longest pause of a controller (2.4 leases).
const TIMEOUT_LEASES: u32 = 3;
/// Longest pause of a client between two operations, in a busy phase and in a quiet phase of the writers. In a
/// quiet phase, a late write from before a fault is not hidden by later ones.
const PAUSE_MAX: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(6)];
/// Length of a phase, after which clients may become busy or quiet.
const PHASE: Duration = Duration::from_secs(4);
/// Pause before the next round over all controllers, and interval of checks while waiting.
const RETRY: Duration = Duration::from_millis(50);
/// Time after which clients use new keys, so that each key's history stays short.
const GENERATION: Duration = Duration::from_secs(8);
/// Keys of a generation: kind of entity, first id of the run, and number of ids.
const PER_GENERATION: [(Kind, u64, u64); 3] =
    [(Kind::Leaf, 1000, 3), (Kind::Spine, 100, 2), (Kind::Pool, 10, 2)];
/// Maximum length of a follower's connection.
const SESSION_MAX: Duration = Duration::from_secs(6);
/// Pool in which all followers have workers, so that each change of it reaches all of them.
const COMMON: u16 = 1;
/// Largest queue limit in a command.
const QUEUE_MAX: u64 = 60_000;

/// gRPC client of a controller.
type Client = FabricClient<Channel>;

/// State that clients and followers share: the controllers under test, and the history of their answers.
#[derive(Debug)]
pub struct RunState {
    /// Sockets of the controllers.
    sockets: Vec<PathBuf>,
    /// Start of the run.
    began: Instant,
    /// Timeout of an answer.
    answer_timeout: Duration,
    /// Operations and messages so far.
    history: RefCell<History>,
    /// Controller that served the last read or change, as only a leader does, from 0; `usize::MAX` before the first.
    leader: Arc<AtomicUsize>,
    /// Time of the last served read or change.
    served_ns: Cell<u64>,
    /// Longest interval without a served read or change: its length and its end.
    longest_gap: Cell<(Duration, Duration)>,
    /// Next unique number.
    counter: Cell<u64>,
    /// True if clients and followers must end.
    is_over: Cell<bool>,
}

/// Connects to a controller.
async fn connect(socket: &Path) -> Result<Client, String> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
    let channel = endpoint.map_err(|error| error.to_string())?.connect().await;
    let channel = channel.map_err(|error| format!("no connection: {error}"))?;
    Ok(FabricClient::new(channel).max_decoding_message_size(64 << 20))
}

/// Converts an error status of a command: either it proves that the command was not executed, or the outcome is
/// unknown.
fn refusal(status: &Status) -> Answer {
    let (code, reason) = (status.code(), status.message().to_owned());
    // Parses the number behind the words `version is`.
    let version = || {
        let digits = reason.split_once("version is ")?.1;
        let end = digits.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok()
    };
    match code {
        Code::NotFound => Answer::Absent,
        Code::AlreadyExists => Answer::Present,
        Code::Aborted => match version() {
            Some(found) => Answer::OtherVersion { found },
            None => Answer::Fail { reason },
        },
        Code::InvalidArgument | Code::FailedPrecondition => Answer::Fail { reason },
        // Only this text proves that the command was not executed.
        Code::Unavailable if reason.starts_with("this controller stands by: ") => {
            Answer::Fail { reason }
        }
        _ => Answer::Unknown { reason: format!("{code:?}: {reason}") },
    }
}

impl RunState {
    /// Creates the state for the controllers at these sockets.
    #[must_use]
    pub fn new(
        sockets: Vec<PathBuf>,
        began: Instant,
        lease: Duration,
        leader: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            sockets,
            began,
            answer_timeout: lease * TIMEOUT_LEASES,
            history: RefCell::default(),
            leader,
            served_ns: Cell::default(),
            longest_gap: Cell::default(),
            counter: Cell::new(1),
            is_over: Cell::new(false),
        }
    }

    /// Ends clients and followers.
    pub fn end(&self) {
        self.is_over.set(true);
    }

    /// Returns the history so far and clears it.
    #[must_use]
    pub fn take_history(&self) -> History {
        self.history.take()
    }

    /// Returns the longest interval without a served read or change, until now: its length and its end.
    #[must_use]
    pub fn longest_gap(&self) -> (Duration, Duration) {
        let now = self.now_ns();
        let gap = Duration::from_nanos(now - self.served_ns.get());
        self.longest_gap.get().max((gap, Duration::from_nanos(now)))
    }

    /// Returns the time since the start of the run, in nanoseconds.
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Returns a new number, for values that identify the write that made them, and for processes of followers.
    fn unique_number(&self) -> u64 {
        self.counter.replace(self.counter.get() + 1)
    }

    /// Records that this controller served a read or a change.
    fn record_leader(&self, controller: usize) {
        self.leader.store(controller, Ordering::Relaxed);
        self.longest_gap.set(self.longest_gap());
        self.served_ns.set(self.now_ns());
    }

    /// Executes an operation and records it. Returns its answer.
    async fn operate(
        &self,
        number: u32,
        connections: &mut [Option<Client>],
        controller: usize,
        request: Request,
    ) -> Answer {
        let began_ns = self.now_ns();
        let reply = self.send_request(connections, controller, &request);
        let answer = timeout(self.answer_timeout, reply).await;
        let timed_out =
            || Answer::Unknown { reason: format!("no answer for {:?}", self.answer_timeout) };
        let mut answer = answer.unwrap_or_else(|_| timed_out());
        // A read without an answer counts as failed: it has no effect, so its outcome is known.
        if let (Request::Read, Answer::Unknown { reason }) = (&request, &answer) {
            answer = Answer::Fail { reason: reason.clone() };
        }
        if matches!(answer, Answer::State { .. } | Answer::Done { .. }) {
            self.record_leader(controller);
        }
        let operation = Operation {
            client: number,
            controller: controller as u32 + 1,
            began_ns,
            ended_ns: self.now_ns(),
            request,
            answer: answer.clone(),
        };
        self.history.borrow_mut().operations.push(operation);
        answer
    }

    /// Sends a request over the connection to a controller, which it opens if necessary. Closes the
    /// connection if a command's outcome is unknown or the caller stops waiting.
    async fn send_request(
        &self,
        connections: &mut [Option<Client>],
        controller: usize,
        request: &Request,
    ) -> Answer {
        let connection = &mut connections[controller];
        let mut client = match connection.take() {
            Some(client) => client,
            None => match connect(&self.sockets[controller]).await {
                Ok(client) => client,
                // The request was not sent.
                Err(reason) => return Answer::Fail { reason },
            },
        };
        let answer = match request {
            Request::Read => match client.topology(TopologyRequest {}).await {
                Ok(reply) => {
                    let reply = reply.into_inner();
                    let state = record::of_topology(&reply);
                    let state = self.history.borrow_mut().intern(state);
                    Answer::State { term: reply.term, version: reply.version, state }
                }
                Err(status) => Answer::Fail { reason: status.message().to_owned() },
            },
            Request::Command { text, if_version, .. } => {
                let command = CommandRequest { command: text.clone(), if_version: *if_version };
                match client.command(command).await {
                    Ok(reply) => Answer::Done { version: reply.into_inner().version },
                    Err(status) => refusal(&status),
                }
            }
        };
        if !matches!(answer, Answer::Unknown { .. }) {
            *connection = Some(client);
        }
        answer
    }

    /// Sends a command to one controller after another until one executes it, or refuses it because the key
    /// exists. Returns the controller, and the version if the command was executed. Fails after `time`.
    async fn retry_until_done(
        &self,
        text: &str,
        time: Duration,
    ) -> Result<(usize, Option<u64>), String> {
        let request = command(text, None)?;
        let (began, mut connections) = (Instant::now(), vec![None; self.sockets.len()]);
        let mut answers = vec![String::new(); self.sockets.len()];
        loop {
            for (controller, last_answer) in answers.iter_mut().enumerate() {
                let answer = self.operate(0, &mut connections, controller, request.clone()).await;
                match answer {
                    Answer::Done { version } => return Ok((controller, Some(version))),
                    Answer::Present => return Ok((controller, None)),
                    _ => {}
                }
                *last_answer = answer.to_string();
            }
            if began.elapsed() > time {
                let answers: Vec<_> = (1..)
                    .zip(answers)
                    .map(|(id, reason)| format!("controller {id}: {reason}"))
                    .collect();
                return Err(format!("{text} for {time:?}: {}", answers.join("; ")));
            }
            sleep(RETRY).await;
        }
    }

    /// Waits for a leader and creates the followers' entities: leaves with workers of one pool.
    ///
    /// # Errors
    /// If no controller executes a command in time.
    pub async fn prepare(&self, followers: u16, time: Duration) -> Result<(), String> {
        for leaf in 1..=followers {
            self.retry_until_done(&format!("add-leaf id={leaf} ip=10.200.0.{leaf}"), time).await?;
            let server = format!("add-server ip=10.201.0.{leaf} leaf={leaf} workers=0-3");
            self.retry_until_done(&server, time).await?;
        }
        let pool = format!(
            "add-pool id={COMMON} workers={} policy=horus queue=1",
            2 * u32::from(followers)
        );
        self.retry_until_done(&pool, time).await?;
        // The preparation does not count as a gap.
        self.served_ns.set(self.now_ns());
        self.longest_gap.take();
        Ok(())
    }

    /// Makes a change and reads it after all faults. Waits until all followers have it, and until a
    /// process of a follower has received messages over two connections. Returns the time until the change was stored.
    ///
    /// # Errors
    /// If one of these steps takes too long.
    pub async fn settle(&self, followers: u16, time: Duration) -> Result<Duration, String> {
        let began = Instant::now();
        let text =
            format!("set-queue pool={COMMON} queue={}", self.unique_number() % QUEUE_MAX + 1);
        let (mut leader, version) = self.retry_until_done(&text, time).await?;
        let change_time = began.elapsed();
        let version = version.ok_or_else(|| format!("{text}: refused, it exists"))?;
        let mut connections = vec![None; self.sockets.len()];
        for number in 0..3 {
            loop {
                let read = self.operate(number, &mut connections, leader, Request::Read).await;
                if matches!(read, Answer::State { .. }) {
                    break;
                }
                if began.elapsed() >= time {
                    return Err(format!("no leader answers a read after the faults: {read}"));
                }
                // Another controller may lead since the change.
                leader = (leader + 1) % self.sockets.len();
                sleep(RETRY).await;
            }
        }
        while began.elapsed() < time {
            let lagging = self.lagging_followers(followers, version);
            if lagging.is_empty() && (followers == 0 || self.has_reconnected()) {
                return Ok(change_time);
            }
            sleep(RETRY).await;
        }
        let lagging = self.lagging_followers(followers, version).join(", ");
        Err(if lagging.is_empty() {
            format!("no follower received a second snapshot within {time:?} after the faults")
        } else {
            format!("{lagging} did not receive version {version} within {time:?} after the faults")
        })
    }

    /// Returns true if a process of a follower received messages over two connections in the run. Followers that return
    /// to an older version mostly do so at a new connection, so a history without reconnection proves little.
    fn has_reconnected(&self) -> bool {
        let history = self.history.borrow();
        let mut firsts = BTreeSet::new();
        let mut updates = history.updates.iter().filter(|update| update.asked_ns.is_some());
        updates.any(|update| !firsts.insert(update.process))
    }

    /// Returns the followers whose last message is older than a version.
    fn lagging_followers(&self, followers: u16, version: u64) -> Vec<String> {
        let history = self.history.borrow();
        let nodes = (1..=followers).map(|id| NodeId::Leaf(id).to_string());
        let is_lagging = |node: &String| {
            let newest = history.updates.iter().rev().find(|update| update.node == *node);
            newest.is_none_or(|update| update.version < version)
        };
        nodes.filter(is_lagging).collect()
    }

    /// Runs a client until the end: operations on keys of the current generation, with pauses between them.
    pub async fn run_client(self: Rc<Self>, number: u32, seed: u64) {
        let mut stream = StreamSeed::derive(seed, "client", number).stream();
        let count = self.sockets.len();
        let mut connections = vec![None; count];
        // Version in the last answer to this client.
        let mut last_version = 0;
        while !self.is_over.get() {
            // Half of the clients use any controller, including former leaders. Half of these only read, so
            // that they never wait behind a command.
            let leader = self.leader.load(Ordering::Relaxed).min(count - 1);
            let follows_leader = number.is_multiple_of(2) && stream.random_bool(0.9);
            let controller = if follows_leader { leader } else { stream.random_range(0..count) };
            let only_reads = number % 4 == 3;
            let request =
                if only_reads { Request::Read } else { self.draw(&mut stream, last_version) };
            let answer = self.operate(number, &mut connections, controller, request).await;
            match answer {
                Answer::State { version, .. } | Answer::Done { version } => last_version = version,
                Answer::OtherVersion { found } => last_version = found,
                _ => {}
            }
            // A third of the phases, by the seed, is quiet for all clients that write.
            let phase = self.began.elapsed().as_secs() / PHASE.as_secs();
            let is_quiet = !only_reads
                && StreamSeed::derive(seed, "phase", phase as u32).seed.is_multiple_of(3);
            self.pause(PAUSE_MAX[usize::from(is_quiet)].mul_f64(stream.random())).await;
        }
    }

    /// Waits for `time`, or until the end of the run.
    async fn pause(&self, time: Duration) {
        let began = Instant::now();
        while !self.is_over.get() && began.elapsed() < time {
            sleep(RETRY.min(time - began.elapsed().min(time))).await;
        }
    }

    /// Draws a client's next request. Some commands require the version `last_version`.
    fn draw(&self, stream: &mut Stream, last_version: u64) -> Request {
        if stream.random_bool(0.35) {
            return Request::Read;
        }
        let generation = self.began.elapsed().as_secs() / GENERATION.as_secs();
        let (kind, first, count) = PER_GENERATION[stream.random_range(0..PER_GENERATION.len())];
        // The remainder keeps ids within 16 bits in long runs.
        let id = first + (generation * count + stream.random_range(0..count)) % 8000;
        let unique = self.unique_number();
        // An address in 11.0.0.0/8 whose last byte is 1 to 250.
        let ip = std::net::Ipv4Addr::from_bits(
            (11 << 24) + ((unique / 250) << 8) as u32 + (unique % 250) as u32 + 1,
        );
        // A limit that other commands also set, or mostly a new one.
        let queue = match stream.random_bool(0.3) {
            true => stream.random_range(1..4),
            false => 4 + unique % (QUEUE_MAX - 4),
        };
        let is_common = stream.random_bool(0.25);
        let text = match (kind, stream.random_range(0..10)) {
            _ if is_common => format!("set-queue pool={COMMON} queue={queue}"),
            (Kind::Leaf, 0..4) => format!("add-leaf id={id} ip={ip}"),
            (Kind::Leaf, 4..6) => format!("fail-leaf id={id}"),
            (Kind::Leaf, 6..8) => format!("restore-leaf id={id}"),
            (Kind::Leaf, _) => format!("remove-leaf id={id}"),
            (Kind::Spine, 0..4) => format!("add-spine id={id} ip={ip}"),
            (Kind::Spine, 4..6) => format!("fail-spine id={id}"),
            (Kind::Spine, 6..8) => format!("restore-spine id={id}"),
            (Kind::Spine, _) => format!("remove-spine id={id}"),
            (_, 0..4) => format!("add-pool id={id} workers=0 policy=horus queue={queue}"),
            (_, 4..8) => format!("set-queue pool={id} queue={queue}"),
            (_, _) => format!("remove-pool id={id}"),
        };
        let if_version = stream.random_bool(0.25).then_some(last_version.max(1));
        command(&text, if_version).unwrap_or(Request::Read)
    }

    /// Runs a leaf that follows one controller after another until the end. It sometimes restarts.
    pub async fn run_follower(self: Rc<Self>, leaf: u16, seed: u64) {
        let mut stream = StreamSeed::derive(seed, "follower", leaf.into()).stream();
        let mut follower = Follower::new(leaf, self.unique_number());
        let mut order: Vec<usize> = (0..self.sockets.len()).collect();
        while !self.is_over.get() {
            order.shuffle(&mut stream);
            for &controller in &order {
                let session = SESSION_MAX.mul_f64(stream.random_range(0.2..1.0));
                let _ = timeout(session, self.session(&mut follower, controller)).await;
                if self.is_over.get() {
                    return;
                }
            }
            if stream.random_bool(0.3) {
                follower = Follower::new(leaf, self.unique_number());
            }
            sleep(RETRY).await;
        }
    }

    /// Follows a controller over one connection and records each message. Ends at a message that the follower refuses.
    async fn session(&self, follower: &mut Follower, controller: usize) -> Result<(), String> {
        let asked_ns = self.now_ns();
        let mut client = connect(&self.sockets[controller]).await?;
        let (requests, request_stream) = mpsc::channel(4);
        // The first message names the node, its process, and the newest position that it has received.
        let first = Message::Hello(hello(follower.node, follower.process, follower.newest));
        let send = |message| requests.send(FollowRequest { message: Some(message) });
        send(first).await.map_err(|error| error.to_string())?;
        let response = client.follow(ReceiverStream::new(request_stream)).await;
        let mut updates = response.map_err(|status| status.message().to_owned())?.into_inner();
        let mut first_asked_ns = Some(asked_ns);
        while let Some(message) = updates.message().await.map_err(|status| status.to_string())? {
            let version = message.version;
            let (mut update, acceptance) = follower.apply(message)?;
            (update.asked_ns, update.at_ns) = (first_asked_ns.take(), self.now_ns());
            update.controller = controller as u32 + 1;
            // A refused message is recorded too: the check judges the controller that sent it.
            self.history.borrow_mut().updates.push(update);
            acceptance?;
            let acknowledge = Message::Acknowledge(Acknowledge { version });
            send(acknowledge).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Converts a command's text to a request.
fn command(text: &str, if_version: Option<u64>) -> Result<Request, String> {
    let command = text.parse().map_err(|error| format!("{text}: {error}"))?;
    let (key, change) = record::of_command(&command).ok_or(format!("{text}: of no one key"))?;
    Ok(Request::Command { text: text.to_owned(), key, change, if_version })
}

/// Process of a node that follows the controllers: it receives its desired state from the leader.
struct Follower {
    node: NodeId,
    /// Unique number of the process.
    process: u64,
    /// Its desired state, as received.
    view: View,
    /// Newest position (version and term) received.
    newest: Position,
}

impl Follower {
    fn new(leaf: u16, process: u64) -> Self {
        Self {
            node: NodeId::Leaf(leaf),
            process,
            view: View::default(),
            newest: Position::default(),
        }
    }

    /// Applies a message as a node does: a snapshot replaces the view, any other message changes it. Returns the
    /// message's record. The inner error is the reason why a node refuses an older message, the outer one that of an
    /// invalid message.
    fn apply(&mut self, message: FollowReply) -> Result<(Update, Result<(), String>), String> {
        let (version, term) = (message.version, message.term);
        let position = Position { version, term };
        let mut view = if message.snapshot { View::default() } else { self.view.clone() };
        view.apply(delta(message).map_err(|error| error.to_string())?);
        let mut hasher = DefaultHasher::new();
        format!("{view:?}").hash(&mut hasher);
        let pools = view
            .pools
            .iter()
            .map(|(&id, pool)| (Key(Kind::Pool, id.into()), record::of_pool(pool)));
        let update = Update {
            node: self.node.to_string(),
            process: self.process,
            controller: 0,
            asked_ns: None,
            at_ns: 0,
            term,
            version,
            view: hasher.finish(),
            part: pools.collect(),
        };
        if position < self.newest {
            return Ok((update, Err(format!("it sends {position} after {}", self.newest))));
        }
        (self.view, self.newest) = (view, position);
        Ok((update, Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only answers that prove a refusal count as such. All others are unknown.
    #[test]
    fn controller_answers_are_distinguished() {
        let unknown = |status: &Status| matches!(refusal(status), Answer::Unknown { .. });
        assert_eq!(refusal(&Status::not_found("leaf 3: there is none")), Answer::Absent);
        assert_eq!(refusal(&Status::already_exists("id 3")), Answer::Present);
        let other = Status::aborted("the fabric's version is 17, not 9: look at what has changed");
        assert_eq!(refusal(&other), Answer::OtherVersion { found: 17 });
        let stands_by = Status::unavailable("this controller stands by: controller 2 leads");
        assert!(matches!(refusal(&stands_by), Answer::Fail { .. }));
        let ends = "the controller ends; whether the command is kept is not known";
        assert!(unknown(&Status::unavailable(ends)));
        assert!(unknown(&Status::unknown("h2 protocol error")));
        assert!(unknown(&Status::deadline_exceeded("late")));
    }

    #[test]
    fn follower_records_and_refuses_older_messages() {
        let mut follower = Follower::new(1, 1);
        let message =
            |version, term| FollowReply { version, term, snapshot: true, ..Default::default() };
        let mut take = |version, term| {
            let (update, acceptance) = follower.apply(message(version, term)).unwrap();
            assert_eq!((update.version, update.term), (version, term));
            (acceptance.is_ok(), follower.newest)
        };
        let newest = Position { version: 7, term: 2 };
        assert_eq!(take(7, 2), (true, newest));
        assert_eq!(take(6, 3), (false, newest));
        assert_eq!(take(7, 1), (false, newest));
        // A controller compares the position of the hello in the same order.
        let first = hello(follower.node, 1, follower.newest);
        assert_eq!((first.version, first.term), (7, 2));
    }

    /// A drawn text that is not such a command becomes a read. Intended reads are 35% of the 2000 requests.
    #[test]
    fn every_drawn_command_changes_one_key() {
        let leader = Arc::default();
        let run_state = RunState::new(Vec::new(), Instant::now(), Duration::from_secs(3), leader);
        let mut stream = StreamSeed::derive(1, "client", 1).stream();
        let requests: Vec<_> = (0..2000).map(|_| run_state.draw(&mut stream, 5)).collect();
        let reads = requests.iter().filter(|request| **request == Request::Read).count();
        assert!((600..800).contains(&reads), "{reads}");
        let sets = requests.iter().filter(|request| {
            matches!(
                request,
                Request::Command { change: record::Change::Set(record::Field::Queue, _), .. }
            )
        });
        // About 455: 35% of the 1300 commands, a quarter for the common pool and a tenth for other pools.
        assert!(sets.count() > 300);
        for request in &requests {
            if let Request::Command { text, .. } = request {
                assert!(text.parse::<wedjat::controller::Command>().is_ok(), "{text}");
            }
        }
    }
}
