//! Tests of the service without a desk: the test answers the requests itself. A session is a node's open call to the
//! controller.

use tokio::sync::watch;

use super::*;
use crate::TIMEOUT;
use crate::lease::Lease;
use crate::view::Position;

/// Service of a leader, with the desk's ends of its channels.
struct Site {
    service: Service,
    /// Requests of the service to the desk.
    requests: mpsc::Receiver<CommandRequest>,
    /// Role of the controller.
    role: watch::Sender<ControllerRole>,
}

impl Site {
    /// Creates the service of a controller that leads with this fabric.
    fn new(fabric: &Fabric) -> Self {
        let (sender, requests) = mpsc::channel(8);
        let (role, reader) = RoleReader::new();
        let site = Self { service: Service::new(1, false, sender, reader), requests, role };
        site.publish(fabric);
        site
    }

    /// Publishes a version of the fabric.
    fn publish(&self, fabric: &Fabric) {
        let (fabric, lease) = (Arc::new(fabric.clone()), Lease::unlimited());
        self.role.send_replace(ControllerRole::Leader { term: 1, fabric, lease });
    }

    /// Starts a session of a node, which reports these spines as silent. Returns its number.
    fn follow(&self, node: NodeId, silent_spines: &[u32]) -> u64 {
        let (session, _) = self.service.add_follower(node, 0).unwrap();
        let seen = proto::Seen { silent_spines: silent_spines.to_vec(), ..Default::default() };
        self.service.update_follower((node, session), |follower| follower.seen = seen.clone());
        session
    }

    /// Starts the sessions of both spines and the leaf, and ends that of spine 1. The leaf reports spine 1 as silent.
    fn lose_spine(&self) {
        let session = self.follow(NodeId::Spine(1), &[]);
        self.follow(NodeId::Spine(2), &[]);
        self.follow(NodeId::Leaf(1), &[1]);
        self.service.remove_follower(NodeId::Spine(1), session);
    }
}

/// Returns a fabric with spines 1 and 2, and with leaf 1, whose rack is linked to spine 1.
fn fabric() -> Fabric {
    let mut fabric = Fabric::default();
    for command in [
        "add-spine id=1 ip=10.0.0.1",
        "add-leaf id=1 ip=10.0.1.1",
        "add-server ip=10.0.1.11 leaf=1 workers=0-3",
        "add-pool id=7 workers=4 policy=horus spines=1",
        "add-spine id=2 ip=10.0.0.2",
    ] {
        fabric = after(&fabric, command);
    }
    assert_eq!(*fabric.links[&7], [(1, 1)].into());
    fabric
}

/// Returns the fabric after a command.
fn after(fabric: &Fabric, command: &str) -> Fabric {
    fabric.decide(&command.parse().unwrap()).unwrap().1
}

/// Runs a test with a timeout.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(TIMEOUT, test).await.unwrap() });
}

// promise: controller.1
#[test]
fn failover_follows_a_version_conflict() {
    let fabric = fabric();
    let mut site = Site::new(&fabric);
    site.lose_spine();
    let service = site.service.clone();
    let desk = async {
        // Another command has changed the fabric since the service read it.
        let request = site.requests.recv().await.unwrap();
        let next = after(&fabric, "add-leaf id=2 ip=10.0.2.1");
        site.publish(&next);
        let (found, wanted) = (next.version, fabric.version);
        assert_eq!(request.if_version, Some(wanted));
        request.answer.send(Err(AskError::Version { found, wanted })).unwrap();
        let request = site.requests.recv().await.unwrap();
        assert_eq!(request.if_version, Some(found));
        assert!(matches!(request.request, DeskRequest::Command(Command::FailSpine { id: 1 })));
    };
    run(async { _ = tokio::join!(service.check_spine(1), desk) });
}

// promise: controller.1
#[test]
fn restored_spine_replaces_a_silent_one() {
    let failed = after(&fabric(), "fail-spine id=2");
    let mut site = Site::new(&failed);
    site.lose_spine();
    let service = site.service.clone();
    assert!(!service.is_down(&failed, 1), "no other spine is up");
    let desk = async {
        let request = site.requests.recv().await.unwrap();
        let restored = after(&failed, "restore-spine id=2");
        site.publish(&restored);
        let result = CommandResult { fabric: Arc::new(restored), pool: None };
        request.answer.send(Ok(result)).unwrap();
        let request = site.requests.recv().await.unwrap();
        assert!(matches!(request.request, DeskRequest::Command(Command::FailSpine { id: 1 })));
    };
    let command = "restore-spine id=2".to_owned();
    let restore = Request::new(proto::CommandRequest { command, if_version: None });
    run(async {
        let (answer, ()) = tokio::join!(service.command(restore), desk);
        answer.unwrap();
    });
}

// promise: controller.1
#[test]
fn new_spine_with_an_old_id_stays_up() {
    let fabric = fabric();
    let site = Site::new(&fabric);
    site.lose_spine();
    assert!(site.service.is_down(&fabric, 1));
    site.publish(&after(&fabric, "remove-spine id=1"));
    run(site.service.check_spines());
    // The new spine 1 has not connected yet.
    assert!(!site.service.is_down(&fabric, 1));
}

#[test]
fn late_end_of_a_session_removes_no_other() {
    let site = Site::new(&fabric());
    let leaf = NodeId::Leaf(1);
    let (first, second) = (site.follow(leaf, &[]), site.follow(leaf, &[]));
    site.service.remove_follower(leaf, second);
    site.follow(leaf, &[]);
    site.service.remove_follower(leaf, first);
    assert!(site.service.followers().contains_key(&leaf));
}

// promise: controller.2
#[test]
fn implausible_version_of_a_node_blocks_no_command() {
    let mut site = Site::new(&fabric());
    let (service, leaf) = (site.service.clone(), NodeId::Leaf(1));
    let hello = |version| convert::hello(leaf, 0, Position { version, term: 1 });
    let command = || Command::RestoreLeaf { id: 1 };
    run(async {
        service.check(leaf, &hello(u64::MAX)).await.unwrap_err();
        let reaches_desk = tokio::select! {
            _ = service.execute(command(), None) => false,
            request = site.requests.recv() => request.is_some(),
        };
        assert!(reaches_desk);
        service.check(leaf, &hello(VERSION_MAX)).await.unwrap_err();
        let refused = service.execute(command(), None).await.unwrap_err();
        assert!(matches!(refused, AskError::Behind { has: VERSION_MAX, .. }), "{refused}");
    });
}
