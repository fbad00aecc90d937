//! Tests of commands on a fabric: effects, refusals, and invariants.
//!
//! A command yields events, the smallest changes of a fabric. A view is the part of a fabric that one node receives. A
//! link assigns a rack of a pool, that is a leaf with workers of the pool, to a spine.

#[path = "../../tests/golden/mod.rs"]
mod golden;
#[path = "steps/tests.rs"]
mod steps;

use proptest::prelude::*;
use wedjat_core::limits::MEMBERS_MAX;
use wedjat_desired::state::Delta;

use super::*;

/// Applies the commands to an empty fabric, and returns the result.
fn build(commands: &[&str]) -> Fabric {
    let mut fabric = Fabric::default();
    for text in commands {
        fabric = after(&fabric, text);
    }
    fabric
}

/// Returns the fabric after a command, which must keep it consistent.
fn after(fabric: &Fabric, text: &str) -> Fabric {
    let command: Command = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    let (_, next) = fabric.decide(&command).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(next.contradictions(), Vec::<String>::new(), "{text}");
    next
}

/// Returns the error of a refused command.
fn refusal(fabric: &Fabric, text: &str) -> String {
    let command: Command = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    let error = fabric.decide(&command).expect_err(text);
    error.to_string()
}

/// Returns a fabric with two spines, and four leaves (1 to 4) with two servers of four workers each: 32 workers.
/// Workers 0 to 3 of each leaf are on a server whose workers register themselves.
fn racks() -> Fabric {
    let mut commands =
        vec!["add-spine id=1 ip=10.0.0.1".to_owned(), "add-spine id=2 ip=10.0.0.2".to_owned()];
    for leaf in 1..=4 {
        commands.push(format!("add-leaf id={leaf} ip=10.0.{leaf}.1"));
        commands
            .push(format!("add-server ip=10.0.{leaf}.11 leaf={leaf} workers=0-3 registers=true"));
        commands.push(format!("add-server ip=10.0.{leaf}.12 leaf={leaf} workers=4-7"));
    }
    build(&commands.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the racks of a pool, each with its leaf and its number of workers in the pool.
fn racks_of(fabric: &Fabric, pool: u16) -> Vec<(u16, u32)> {
    fabric.racks(pool).collect()
}

// promise: controller.1
#[test]
fn pool_gets_workers_and_spines_by_strategy() {
    let fabric = after(&racks(), "add-pool id=7 workers=8 policy=horus spines=2");
    assert_eq!(racks_of(&fabric, 7), [(1, 2), (2, 2), (3, 2), (4, 2)]);
    assert_eq!(*fabric.links[&7], [(1, 1), (2, 1), (3, 2), (4, 2)].into());
    // One worker of each server.
    let members =
        |leaf: u16| fabric.leaves[&leaf].workers.iter().filter(|(_, one)| one.pool == Some(7));
    assert_eq!(members(1).map(|(id, _)| *id).collect::<Vec<_>>(), [0, 4]);
    // Without an id, the pool gets the first free one: 1.
    // It packs: 6 free workers of one rack, and 3 of another.
    let fabric = after(&fabric, "add-pool workers=9 policy=racksched placement=pack");
    assert_eq!(racks_of(&fabric, 1), [(1, 6), (2, 3)]);
    assert_eq!(fabric.pools[&1].spine_policy, "racksched");
    // Pool 1 has no spines. The speed of a rack at a spine is its number of workers.
    let view = fabric.view(NodeId::Spine(1));
    let racks: Vec<_> = view.workers.keys().copied().collect();
    assert_eq!(racks, [(Some(7), 1), (Some(7), 2)]);
    assert_eq!(view.workers[&(Some(7), 2)].speed, 2.0);
    let view = fabric.view(NodeId::Leaf(3));
    assert_eq!((view.workers.len(), view.servers.len()), (2, 2));
    let spine = view.pools[&7].spine.map(|spine| (spine.id, spine.ip));
    assert_eq!(spine, Some((2, "10.0.0.2".parse().unwrap())));
    let view = fabric.view(NodeId::Agent("10.0.1.11".parse().unwrap()));
    assert_eq!(view.pools.keys().copied().collect::<Vec<_>>(), [1, 7]);
    assert_eq!(view.workers.len(), 4);
}

// promise: controller.1
#[test]
fn spine_is_down_after_all_heartbeats_end() {
    let fabric = after(&racks(), "add-pool id=7 workers=8 policy=horus spines=2");
    // Pool 7 links leaves 1 and 2 to spine 1, and leaves 3 and 4 to spine 2. The second argument selects the nodes with
    // a connection to the controller, and the third one the leaves that report the spine as silent.
    let all = |_: NodeId| true;
    let all_but = |lost: &'static [NodeId]| move |node: NodeId| !lost.contains(&node);
    let (first, second) = (NodeId::Spine(1), NodeId::Spine(2));
    assert!(!fabric.is_spine_down(1, all, |_| true), "it follows: its links are lost");
    assert!(fabric.is_spine_down(1, all_but(&[NodeId::Spine(1)]), |_| true));
    // Leaf 2 still hears the spine. Leaves 3 and 4 are not linked to it.
    assert!(!fabric.is_spine_down(1, all_but(&[NodeId::Spine(1)]), |leaf| leaf != 2));
    assert!(fabric.is_spine_down(1, all_but(&[NodeId::Spine(1)]), |leaf| leaf < 3));
    // A leaf that does not follow does not count. Without any leaf the spine's state is unknown.
    assert!(
        fabric.is_spine_down(1, all_but(&[NodeId::Spine(1), NodeId::Leaf(2)]), |leaf| leaf != 2)
    );
    let without_leaves = all_but(&[NodeId::Spine(1), NodeId::Leaf(1), NodeId::Leaf(2)]);
    assert!(!fabric.is_spine_down(1, without_leaves, |_| true));
    // No other spine could replace it.
    assert!(!fabric.is_spine_down(1, move |node| node != first && node != second, |_| true));
    let failed = after(&fabric, "fail-spine id=2");
    assert!(!failed.is_spine_down(1, all_but(&[NodeId::Spine(1)]), |_| true));
    assert!(!failed.is_spine_down(2, all_but(&[NodeId::Spine(2)]), |_| true), "it is already");
}

// promise: controller.1
#[test]
fn only_failed_parts_are_replaced() {
    let fabric = after(&racks(), "add-pool id=7 workers=8 policy=horus spines=2");
    let failed = after(&fabric, "fail-spine id=1");
    assert!(failed.links[&7].values().all(|spine| *spine == 2));
    let restored = after(&failed, "restore-spine id=1");
    assert_eq!(restored.links[&7].values().filter(|spine| **spine == 1).count(), 2);
    // Other racks replace the two workers of leaf 2. Its return moves none back.
    let without_leaf = after(&fabric, "fail-leaf id=2");
    assert_eq!(racks_of(&without_leaf, 7), [(1, 3), (3, 3), (4, 2)]);
    assert_eq!(without_leaf.view(NodeId::Leaf(2)), View::default());
    let back = after(&without_leaf, "restore-leaf id=2");
    assert_eq!(racks_of(&back, 7), [(1, 3), (3, 3), (4, 2)]);
    // No rack has free workers. The pool lacks workers until some return.
    let mut short = after(&fabric, "resize-pool id=7 workers=32");
    short = after(&short, "fail-leaf id=2");
    assert_eq!(short.members(7), 24);
    assert_eq!(after(&short, "restore-leaf id=2").members(7), 32);
    // Another leaf takes over the rack. Ids that it already has prevent that.
    assert!(
        refusal(&fabric, "fail-leaf id=2 to=3")
            .contains("worker 0 of leaf 3: server 10.0.3.11 has it already")
    );
    let fabric = after(&fabric, "add-leaf id=9 ip=10.0.9.1");
    let moved = after(&fabric, "fail-leaf id=2 to=9");
    assert_eq!(racks_of(&moved, 7), [(1, 2), (3, 2), (4, 2), (9, 2)]);
    assert_eq!(moved.leaf_of("10.0.2.11".parse().unwrap()), Some(9));
}

// promise: controller.1
#[test]
fn full_fabric_lets_a_rack_move() {
    // Leaves 1 to 512 share one full rack, so that the test needs little memory.
    let last = MEMBERS_MAX - 1;
    let commands = [
        "add-leaf id=1 ip=10.0.1.1".to_owned(),
        format!("add-server ip=10.0.1.11 leaf=1 workers=0-{last}"),
        "add-leaf id=900 ip=10.0.9.1".to_owned(),
    ];
    let mut fabric = build(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    let full = fabric.leaves[&1].clone();
    fabric.leaves.extend((2..=512).map(|id| (id, full.clone())));
    let more = format!("add-server ip=10.0.9.11 leaf=900 workers=0-{last}");
    assert!(refusal(&fabric, &more).contains("in all"));
    let (_, moved) = fabric.decide(&"fail-leaf id=2 to=900".parse().unwrap()).unwrap();
    assert!(moved.leaves[&2].workers.is_empty());
    assert_eq!(moved.leaves[&900].workers.len(), MEMBERS_MAX);
}

// promise: controller.1
#[test]
fn registered_workers_join_an_admitting_pool() {
    let fabric = after(&racks(), "add-pool id=7 workers=0 policy=horus admits=3");
    let joined = after(&fabric, "register leaf=1 ip=10.0.1.11 pool=7 workers=0-1");
    assert_eq!(racks_of(&joined, 7), [(1, 2)]);
    // Repeating the command changes nothing.
    let same = "register leaf=1 ip=10.0.1.11 pool=7 workers=0-1".parse().unwrap();
    assert_eq!(joined.decide(&same).unwrap(), (Vec::new(), joined.clone()));
    // A registration from an unknown server adds the server.
    let new = after(&joined, "register leaf=1 ip=10.0.1.99 pool=7 workers=40");
    let server = &new.leaves[&1].servers[&"10.0.1.99".parse().unwrap()];
    assert!(server.registers && new.members(7) == 3);
    for (text, says) in [
        (
            "register leaf=1 ip=10.0.1.11 pool=7 workers=2",
            "admits workers up to 3, which leaves room for 0",
        ),
        ("register leaf=1 ip=10.0.1.12 pool=7 workers=4", "added without `registers`"),
        (
            "register leaf=1 ip=10.0.1.11 pool=7 workers=4",
            "worker 4 of leaf 1: another server has it",
        ),
        ("register leaf=1 ip=10.0.1.11 pool=8 workers=0", "pool 8: there is none"),
        ("register leaf=8 ip=10.0.1.11 pool=7 workers=0", "leaf 8: there is none"),
        ("register leaf=2 ip=10.0.1.11 pool=7 workers=50", "a server of leaf 1 has it already"),
    ] {
        let error = refusal(&new, text);
        assert!(error.contains(says), "{text}: {error}");
    }
}

// promise: controller.1
#[test]
fn contradictory_topology_is_refused_with_the_cause() {
    let fabric = after(&racks(), "add-pool id=7 workers=8 policy=horus spines=2 address=10.9.0.1");
    for (text, says) in [
        ("add-leaf id=1 ip=10.0.9.1", "id 1: leaf 1 has it already"),
        ("add-spine id=1 ip=10.0.9.1", "id 1: spine 1 has it already"),
        ("add-leaf id=9 ip=10.0.0.2", "address 10.0.0.2: spine 2 has it already; choose another"),
        ("add-leaf id=9 ip=10.0.3.12", "a server of leaf 3 has it"),
        ("add-spine id=9 ip=10.0.3.1", "leaf 3 has it"),
        ("add-spine id=9 ip=10.9.0.1", "pool 7 has it"),
        ("add-spine id=9 ip=224.0.0.1", "it is no host's"),
        ("add-leaf id=9 ip=fd00:9::1", "all of a fabric have the same"),
        ("add-pool id=9 workers=0 policy=sed address=fd00:9::2", "all of a fabric have the same"),
        (
            "add-server ip=10.0.9.11 leaf=9 workers=0",
            "leaf 9: there is none; `wedjat ctl topology`",
        ),
        (
            "add-server ip=10.0.1.13 leaf=1 workers=7-8",
            "worker 7 of leaf 1: server 10.0.1.12 has it",
        ),
        ("add-pool id=7 workers=1 policy=sed", "id 7: pool 7 has it"),
        ("add-pool workers=25 policy=sed", "25 workers are wanted, and 24 are free; add servers"),
        ("add-pool workers=1 policy=sed spines=3", "3 spines are wanted, and 2 are up"),
        ("add-pool workers=1 policy=horus-spine", "it runs on a spine"),
        ("add-pool workers=1 policy=sed spine-policy=sed", "its members can't be racks"),
        ("add-pool workers=1 policy=horus spine-policy=horus", "its members can't be racks"),
        ("resize-pool id=7 workers=33", "25 workers are wanted, and 24 are free"),
        ("fail-leaf id=1 to=1", "can't take its servers over"),
        ("drain-server ip=10.0.1.99", "server 10.0.1.99: there is none"),
    ] {
        let error = refusal(&fabric, text);
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn drained_server_is_marked_and_gives_no_workers() {
    let fabric = after(&racks(), "add-pool id=7 workers=8 policy=horus");
    let drained = after(&fabric, "drain-server ip=10.0.1.11");
    let view = drained.view(NodeId::Leaf(1));
    assert!(view.workers[&(None, 0)].is_drained && !view.workers[&(None, 4)].is_drained);
    // The leaf sends no more tasks to the agent, which serves the tasks that it has.
    let agent = NodeId::Agent([10, 0, 1, 11].into());
    assert_eq!(drained.view(agent), fabric.view(agent));
    // 8 of 32 workers are in pool 7, and 3 others are on the drained server.
    assert_eq!(
        refusal(&drained, "add-pool workers=22 policy=sed").matches("21 are free").count(),
        1
    );
    assert_eq!(
        after(&drained, "undrain-server ip=10.0.1.11").view(NodeId::Leaf(1)),
        fabric.view(NodeId::Leaf(1))
    );
}

/// Generates a command, valid or not. Its few ids let commands of a sequence often refer to the same objects.
fn any_command() -> impl Strategy<Value = String> {
    let (id, pool) = (0..4_u16, 1..4_u16);
    let placement = prop::sample::select(vec!["spread", "pack", "size"]);
    prop_oneof![
        id.clone().prop_map(|id| format!("add-spine id={id} ip=10.1.0.{}", id + 1)),
        id.clone().prop_map(|id| format!("remove-spine id={id}")),
        id.clone().prop_map(|id| format!("fail-spine id={id}")),
        id.clone().prop_map(|id| format!("restore-spine id={id}")),
        id.clone().prop_map(|id| format!("add-leaf id={id} ip=10.2.0.{}", id + 1)),
        id.clone().prop_map(|id| format!("remove-leaf id={id}")),
        id.clone().prop_map(|id| format!("fail-leaf id={id}")),
        (id.clone(), id.clone()).prop_map(|(id, to)| format!("fail-leaf id={id} to={to}")),
        id.clone().prop_map(|id| format!("restore-leaf id={id}")),
        (id.clone(), 1..9_u16, 0..9_u16, 0..9_u16).prop_map(|(leaf, server, first, more)| {
            let last = first + more;
            format!("add-server ip=10.3.0.{server} leaf={leaf} workers={first}-{last} registers=true")
        }),
        (1..9_u16).prop_map(|server| format!("remove-server ip=10.3.0.{server}")),
        (1..9_u16).prop_map(|server| format!("drain-server ip=10.3.0.{server}")),
        (1..9_u16).prop_map(|server| format!("undrain-server ip=10.3.0.{server}")),
        (pool.clone(), 0..20_usize, placement, 0..4_usize, 0..9_usize).prop_map(
            |(id, workers, placement, spines, admits)| {
                format!("add-pool id={id} workers={workers} policy=sed placement={placement} spines={spines} admits={admits}")
            }
        ),
        pool.clone().prop_map(|id| format!("remove-pool id={id}")),
        (pool.clone(), 0..20_usize).prop_map(|(id, workers)| format!("resize-pool id={id} workers={workers}")),
        pool.clone().prop_map(|id| format!("set-policy pool={id} policy=racksched")),
        (id, 1..12_u16, pool, 0..20_u16).prop_map(|(leaf, server, pool, worker)| {
            format!("register leaf={leaf} ip=10.3.0.{server} pool={pool} workers={worker}")
        }),
    ]
}

// Stores of earlier releases have pools in this form.
#[test]
fn stored_pool_has_its_settings_in_one_object() {
    let text = "add-pool id=7 workers=0 policy=random spine-policy=random queue=9 overflow=refuse";
    let (events, _) = Fabric::default().decide(&text.parse().unwrap()).unwrap();
    let expected = concat!(
        r#"[{"pool":{"id":7,"settings":{"policy":"random","spine_policy":"random","#,
        r#""agent_policy":"cfcfs(silence-ms=0)","queue":9,"overflow":"refuse","workers":0,"#,
        r#""placement":"spread","spines":0,"address":null,"admits":0}}}]"#,
    );
    assert_eq!(serde_json::to_string(&events).unwrap(), expected);
    assert_eq!(serde_json::from_str::<Vec<Event>>(expected).unwrap(), events);
}

/// Returns all nodes that the commands of [`any_command`] can create. A registration can add servers 9 to 11.
fn nodes() -> Vec<NodeId> {
    let ids = (0..4).flat_map(|id| [NodeId::Spine(id), NodeId::Leaf(id)]);
    ids.chain((1..12).map(|ip| NodeId::Agent([10, 3, 0, ip].into()))).collect()
}

proptest! {
    // promise: controller.1
    #[test]
    fn random_commands_keep_the_fabric_consistent(
        commands in prop::collection::vec(any_command(), 1..60),
    ) {
        // Fabric of the commands, and the one that results from the stored events.
        let mut fabric = Fabric::default();
        let mut stored = Fabric::default();
        // Each node with its view and the fabric that it received last.
        let mut views: Vec<_> = nodes().into_iter().map(|node| (node, View::default(), Fabric::default())).collect();
        for (round, text) in commands.iter().enumerate() {
            let Ok((events, next)) = fabric.decide(&text.parse().unwrap()) else { continue };
            prop_assert_eq!(next.contradictions(), Vec::<String>::new(), "{}", text);
            prop_assert_eq!(next.version, fabric.version + u64::from(!events.is_empty()));
            // The stored events lead to the same fabric, also after serialization.
            let text = serde_json::to_string(&events).unwrap();
            let read: Vec<Event> = serde_json::from_str(&text).unwrap();
            read.iter().for_each(|event| stored.apply(event));
            stored.version = next.version;
            prop_assert_eq!(&stored, &next);
            // A third of the nodes receives the version of each round, a third that of each second round, and a third
            // that of each third round. A round with a refused command has none.
            for (index, (node, view, received)) in views.iter_mut().enumerate() {
                if (round + index) % (1 + index % 3) == 0 {
                    let now = next.view(*node);
                    let delta = Delta::between(view, &now);
                    let changed = next.changed_pools(received);
                    // The short computation, where it is possible, agrees with the comparison of whole views.
                    if let Some(quick_delta) = next.delta_of_pools(received, *node, view, &changed) {
                        prop_assert_eq!(&quick_delta, &delta);
                    }
                    view.apply(delta);
                    prop_assert_eq!(&*view, &now);
                    *received = next.clone();
                }
            }
            fabric = next;
        }
        // The events of a whole fabric create it again.
        let mut again = Fabric { version: fabric.version, ..Fabric::default() };
        fabric.events().iter().for_each(|event| again.apply(event));
        prop_assert_eq!(again, fabric);
    }
}
