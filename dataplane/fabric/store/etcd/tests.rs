//! Tests of the store with a real etcd and a proxy: lost answers and late requests. Skipped if etcd is not
//! installed.
//!
//! The proxy catches one request with a given text. It loses the answer, holds the request until [`Proxy::deliver`], or
//! answers that etcd is full. The store's second address reaches etcd directly, so the store repeats a call there. A
//! term is the number of a lead.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::timeout;

use super::*;
use crate::TIMEOUT;
use crate::command::Command;
use crate::etcd::Etcd;
use crate::etcd::proxy::{Action, Proxy};

/// Creates a store of one controller with its keys below `/test`.
fn store(members: Vec<String>, lease: Duration, clock: Clock) -> EtcdStore {
    let (prefix, name) = ("/test".to_owned(), "controller 1 at home".to_owned());
    EtcdStore::by_clock(EtcdAccess { members, prefix, lease, tls: None, name }, clock)
}

/// Starts etcd with one member and a store that reaches it through a proxy first; `None` if etcd is not installed.
fn site(lease: Duration) -> Option<(Etcd, Proxy, EtcdStore)> {
    let etcd = Etcd::start(1, &[])?;
    let proxy = Proxy::start(&etcd.urls()[0]);
    let members = vec![proxy.url(), etcd.urls().remove(0)];
    let store = store(members, lease, since_boot);
    Some((etcd, proxy, store))
}

/// Runs a test with a timeout.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(TIMEOUT, test).await.unwrap() });
}

/// Appends the next version, which adds leaf 1 or removes it in turn. Updates `fabric` after a success.
async fn append(store: &mut EtcdStore, fabric: &mut Fabric) -> Result<(), StoreError> {
    let command = match fabric.version % 2 {
        0 => "add-leaf id=1 ip=10.0.1.1",
        _ => "remove-leaf id=1",
    };
    let (events, next) = fabric.decide(&command.parse::<Command>().unwrap()).unwrap();
    store.append(next.version, &events).await?;
    *fabric = next;
    Ok(())
}

/// Deletes a key directly, without the checks of the store's writes.
async fn delete(store: &mut EtcdStore, name: &str) {
    let request = DeleteRangeRequest { key: store.key(name), range_end: Vec::new() };
    let ops = vec![op(Op::RequestDeleteRange(request))];
    store.txn(Vec::new(), ops, "attempt").await.unwrap();
}

/// Duration of a lease that outlasts the test.
const LONG: Duration = Duration::from_secs(3600);

/// Checks that two writes are acknowledged and kept once each. The proxy treats the first one by `fate`. The lead
/// stays.
fn assert_acknowledged_once(fate: Action) {
    let Some((_etcd, proxy, mut store)) = site(LONG) else { return };
    run(async {
        let term = store.lead(|_| ()).await.unwrap();
        let mut fabric = store.load().await.unwrap();
        proxy.catch("/test/log/", fate);
        append(&mut store, &mut fabric).await.unwrap();
        assert!(proxy.has_caught());
        assert_eq!(store.load().await.unwrap(), fabric);
        append(&mut store, &mut fabric).await.unwrap();
        assert_eq!(store.load().await.unwrap(), fabric);
        assert_eq!(store.lead(|_| ()).await.unwrap(), term, "the lead is the same");
    });
}

// promise: controller.2
#[test]
fn append_with_a_lost_answer_is_acknowledged_once() {
    assert_acknowledged_once(Action::LoseAnswer);
}

// promise: controller.2
#[test]
fn equal_version_of_another_write_is_no_acknowledgement() {
    let Some((_etcd, _proxy, mut store)) = site(LONG) else { return };
    run(async {
        store.lead(|_| ()).await.unwrap();
        let mut fabric = store.load().await.unwrap();
        // Another write of version 1: as from a copy of the controller that has not seen the first one.
        let mut other = fabric.clone();
        append(&mut store, &mut fabric).await.unwrap();
        let refused = append(&mut store, &mut other).await.unwrap_err();
        assert!(matches!(refused, StoreError::Deposed), "{refused}");
        assert_eq!(store.load().await.unwrap().version, 1);
    });
}

// promise: controller.2
#[test]
fn lead_with_a_lost_answer_is_recognised() {
    let Some((_etcd, proxy, mut store)) = site(LONG) else { return };
    run(async {
        proxy.catch("controller 1 at home", Action::LoseAnswer);
        let term = store.lead(|_| ()).await.unwrap();
        assert!(proxy.has_caught());
        let leader = store.get("leader").await.unwrap().unwrap();
        assert_eq!((leader.create_revision, leader.version), (term.cast_signed(), 1));
        // The first write to a new etcd has revision 2. So the key was made only once.
        assert_eq!((term, store.abandoned.len()), (2, 0));
        append(&mut store, &mut Fabric::default()).await.unwrap();
    });
}

// promise: controller.2
#[test]
fn dropped_append_gives_the_lead_up() {
    let Some((etcd, proxy, mut store)) = site(LONG) else { return };
    run(async {
        // The store reaches etcd only through the proxy, so that no other attempt of the write succeeds.
        let members = vec![proxy.url()];
        store.members = Members::new(EtcdAccess { members, ..store.access.clone() });
        let term = store.lead(|_| ()).await.unwrap();
        let mut fabric = store.load().await.unwrap();
        proxy.catch("/test/log/", Action::Hold);
        // Drops the write, as the desk does at the end of a lease.
        tokio::select! {
            _ = append(&mut store, &mut fabric) => panic!("etcd has not got it"),
            () = async { while !proxy.has_caught() { sleep(RETRY_PAUSE).await } } => {}
        }
        let refused = append(&mut store, &mut fabric).await.unwrap_err();
        assert!(matches!(refused, StoreError::Deposed), "{refused}");
        store.members = Members::new(EtcdAccess { members: etcd.urls(), ..store.access.clone() });
        assert!(store.lead(|_| ()).await.unwrap() > term);
        // The held write arrives after the new lead, and must change nothing.
        let before = store.load().await.unwrap();
        proxy.deliver();
        assert_eq!(store.load().await.unwrap(), before);
    });
}

/// Compacts twice. Delivers the first compaction's write that contains `text` after the second one, and checks that it
/// changes nothing.
fn deliver_late_compaction(text: &str) {
    let Some((_etcd, proxy, mut store)) = site(LONG) else { return };
    run(async {
        store.lead(|_| ()).await.unwrap();
        let mut fabric = store.load().await.unwrap();
        append(&mut store, &mut fabric).await.unwrap();
        // The proxy holds the write. The store repeats it at its second address.
        proxy.catch(text, Action::Hold);
        store.compact(&fabric).await.unwrap();
        assert!(proxy.has_caught());
        assert_eq!((store.base(), store.load().await.unwrap()), (1, fabric.clone()));
        append(&mut store, &mut fabric).await.unwrap();
        store.compact(&fabric).await.unwrap();
        append(&mut store, &mut fabric).await.unwrap();
        proxy.deliver();
        assert_eq!(store.load().await.unwrap(), fabric);
        assert_eq!(store.base(), 2);
        assert_eq!(store.get(&parts_key(1, 0)).await.unwrap(), None, "the first parts are gone");
    });
}

// promise: controller.2
#[test]
fn late_compaction_does_not_undo_a_later_one() {
    // Only the last write of a compaction names this key.
    deliver_late_compaction("/test/version");
}

// promise: controller.2
#[test]
fn late_part_of_a_compaction_is_refused() {
    deliver_late_compaction("/test/parts/");
}

// promise: controller.2
#[test]
fn missing_part_of_a_base_is_damage() {
    let Some(etcd) = Etcd::start(1, &[]) else { return };
    run(async {
        let mut store = store(etcd.urls(), LONG, since_boot);
        store.lead(|_| ()).await.unwrap();
        let mut fabric = Fabric { version: 1, ..Fabric::default() };
        for id in 0..10_000_u16 {
            let ip = Ipv4Addr::from_bits(0x0A00_0000 + u32::from(id)).into();
            fabric.apply(&Event::Leaf { id, ip, is_failed: false });
        }
        store.compact(&fabric).await.unwrap();
        assert_eq!(store.load().await.unwrap(), fabric);
        let last = records::parts(&fabric).len() as u64 - 1;
        assert!(last > 0);
        delete(&mut store, &parts_key(1, last)).await;
        let refused = store.load().await.unwrap_err();
        assert!(matches!(refused, StoreError::Damaged { version: 1, .. }), "{refused}");
        // Without the count, as from an older release, the store notices gaps.
        delete(&mut store, &count_key(1)).await;
        store.load().await.unwrap();
        delete(&mut store, &parts_key(1, 0)).await;
        let refused = store.load().await.unwrap_err();
        assert!(matches!(refused, StoreError::Damaged { version: 1, .. }), "{refused}");
    });
}

// promise: controller.3
#[test]
fn deposed_controller_reports_no_damage() {
    let Some(etcd) = Etcd::start(1, &[]) else { return };
    run(async {
        let mut store = store(etcd.urls(), LONG, since_boot);
        store.lead(|_| ()).await.unwrap();
        append(&mut store, &mut Fabric::default()).await.unwrap();
        delete(&mut store, &log_key(1)).await;
        let refused = store.load().await.unwrap_err();
        assert!(matches!(refused, StoreError::Damaged { version: 1, .. }), "{refused}");
        // A next leader may have deleted the log by a compaction.
        delete(&mut store, "leader").await;
        let refused = store.load().await.unwrap_err();
        assert!(matches!(refused, StoreError::Deposed), "{refused}");
    });
}

// promise: controller.3
#[test]
fn lost_lease_is_revoked() {
    // Seconds by which the store's clock is ahead of the system's.
    static LATER: AtomicU64 = AtomicU64::new(0);
    let clock = || since_boot() + Duration::from_secs(LATER.load(Ordering::Relaxed));
    let Some(etcd) = Etcd::start(1, &[]) else { return };
    run(async {
        let mut first = store(etcd.urls(), LONG, clock);
        let term = first.lead(|_| ()).await.unwrap();
        let mut lease = first.lease();
        assert!(lease.holds());
        // The process is stopped or cut off for longer than the lease. etcd still has the lease, because its
        // clock differs.
        LATER.store(2 * LONG.as_secs(), Ordering::Relaxed);
        assert!(!lease.holds() && !first.lease().holds());
        lease.end().await;
        let refused = append(&mut first, &mut Fabric::default()).await.unwrap_err();
        assert!(matches!(refused, StoreError::Deposed), "{refused}");
        assert!(first.lead(|_| ()).await.unwrap() > term);
        assert!(first.lease().holds());
        first.resign().await;
        assert!(!first.lease().holds());
        let mut second = store(etcd.urls(), LONG, since_boot);
        second.lead(|_| ()).await.unwrap();
    });
}

// promise: controller.2
#[test]
fn slow_member_gets_the_whole_timeout() {
    let Some((_etcd, proxy, mut store)) = site(LONG) else { return };
    run(async {
        // One member, so the store has no other to ask before the timeout of a call.
        let members = vec![proxy.url()];
        store.members = Members::new(EtcdAccess { members, ..store.access.clone() });
        store.lead(|_| ()).await.unwrap();
        proxy.cut(true);
        // Pings would end the connection earlier, with another reason.
        let error = store.get("version").await.unwrap_err().to_string();
        assert!(error.contains("no answer for 5s"), "{error}");
        proxy.cut(false);
    });
}

// promise: controller.2
#[test]
fn unsent_write_costs_no_lead() {
    let Some(etcd) = Etcd::start(1, &[]) else { return };
    run(async {
        let mut store = store(etcd.urls(), LONG, since_boot);
        let term = store.lead(|_| ()).await.unwrap();
        let mut fabric = store.load().await.unwrap();
        // The socket has the port and does not listen.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}", socket.local_addr().unwrap());
        // Returns `count` members that refuse each connection.
        let dead = |count: usize| {
            let members = vec![url.clone(); count];
            Members::new(EtcdAccess { members, ..store.access.clone() })
        };
        let (one, mut two) = (dead(1), dead(2));
        // Repeats the call until its outcome is known. An attempt that still connects at the timeout leaves it unknown.
        while !matches!(two.call("write", |_| async { Ok(()) }).await, Err(CallError::Unreached(_)))
        {
        }
        store.members = one;
        let error = append(&mut store, &mut fabric).await.unwrap_err().to_string();
        assert!(error.contains("no member of etcd can be reached"), "{error}");
        // A revocation that was not sent stays due.
        store.abandoned.push(1);
        store.revoke_abandoned().await.unwrap_err();
        assert_eq!(store.abandoned, [1]);
        store.members = Members::new(store.access.clone());
        assert_eq!(store.lead(|_| ()).await.unwrap(), term);
        append(&mut store, &mut fabric).await.unwrap();
        assert_eq!(store.load().await.unwrap(), fabric);
    });
}

// promise: controller.2
#[test]
fn refused_write_costs_no_lead() {
    // A quota of 64 KiB, which some writes fill.
    let Some(etcd) = Etcd::start(1, &["--quota-backend-bytes", "65536"]) else { return };
    run(async {
        let mut store = store(etcd.urls(), LONG, since_boot);
        let term = store.lead(|_| ()).await.unwrap();
        let mut fabric = Fabric::default();
        let refused = loop {
            if let Err(refused) = append(&mut store, &mut fabric).await {
                break refused.to_string();
            }
        };
        assert!(refused.contains("it is full: compact and defragment it"), "{refused}");
        assert_eq!(store.lead(|_| ()).await.unwrap(), term);
        assert_eq!(store.load().await.unwrap(), fabric);
    });
}

// promise: controller.2
#[test]
fn refused_write_that_was_kept_is_acknowledged() {
    assert_acknowledged_once(Action::RefuseAfter);
}
