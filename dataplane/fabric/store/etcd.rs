//! Store in etcd, for several controllers. A controller that wants to lead makes the key `leader`, bound to a lease of
//! etcd. etcd deletes the key when the lease ends. The controller that made the key is the leader, and the revision of
//! etcd at which it made the key is its term. Each write checks in its own transaction that the key is still the one
//! that the writer made. So a deposed controller can write nothing.
//!
//! Keys below a prefix: `leader`; `version`; `log/VERSION`, the events of one version; `base`;
//! `parts/VERSION/NUMBER`, the whole fabric at version `base`; `parts/VERSION/count`, the number of its parts; and
//! `attempt`, the name of the last write. Older releases write no `count`, and ignore it.
//! The calls are those of the needed part of etcd's .proto, over the tonic of the control: no other crate is needed.
//!
//! An answer may be lost. The kernel may also deliver a request late, even after its connection was abandoned.
//! A full etcd may refuse a write that it has kept (etcd's issue 16659). Four rules make that harmless.
//!
//! 1. Each write has a unique name, which it puts into `attempt`. A repeated write whose comparison fails
//!    reads that key in the same transaction. If the name is its own, an earlier attempt was kept.
//! 2. No write succeeds twice: each compares a number that it changes (`version`, `base`). The exception is a
//!    part, until its `base` is written. Its repetition writes the same content.
//! 3. After a write with an unknown outcome, the controller gives up its lead. It makes a new key `leader`,
//!    with another revision, before it reads. From then on the comparison of the late write fails.
//! 4. After a refused write, the controller reads `attempt`. If the name is the write's own, the write was kept.

mod members;

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::Status;

pub use self::members::EtcdAccess;
use self::members::{CallError, Members, RETRY_PAUSE};
use super::{Store, StoreError, records};
use crate::etcd_api::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::etcd_api::kv_client::KvClient;
use crate::etcd_api::lease_client::LeaseClient;
use crate::etcd_api::request_op::Request as Op;
use crate::etcd_api::response_op::Response as OpAnswer;
use crate::etcd_api::{
    Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest,
    LeaseRevokeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use crate::event::Event;
use crate::fabric::Fabric;
use crate::lease::{Clock, Lease, Renewal, since_boot};

/// Maximum size of an answer in bytes.
const ANSWER_MAX: usize = 64 << 20;
/// Maximum number of keys in one answer. With parts of 256 KiB, an answer stays below `ANSWER_MAX`.
const PAGE: i64 = 64;

/// Lead of this controller.
#[derive(Debug)]
struct Leadership {
    /// Number of the lease in etcd that the key `leader` has.
    id: i64,
    /// Revision at which the key `leader` was made.
    term: i64,
    /// Lease by this machine's clock, for the tasks that answer for this controller.
    lease: Lease,
    /// Extends and ends `lease`.
    renewal: Renewal,
    /// Task that renews the lease in etcd, and then `lease`.
    keep_alive_task: JoinHandle<()>,
    /// Number of writes so far; part of the next write's name.
    writes: u64,
    /// True while a write is in flight or its outcome is unknown. Set before the write is sent, since its
    /// future may be dropped.
    is_unsettled: bool,
}

impl Drop for Leadership {
    /// Ends the lead in this process: no task renews its lease any more.
    fn drop(&mut self) {
        self.keep_alive_task.abort();
        self.renewal.end();
    }
}

/// Store in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    access: EtcdAccess,
    /// Clock of the leases; another one in tests.
    clock: Clock,
    /// Connections to the servers of the etcd cluster.
    members: Members,
    /// Lead of this controller; `None` while it stands by.
    lead: Option<Leadership>,
    /// Numbers of leases of earlier leads and attempts that etcd may still have. The key `leader` of such a lease
    /// blocks a new lead.
    abandoned: Vec<i64>,
    /// Version of the stored whole fabric.
    base: u64,
    /// Last leader named in the log.
    logged_leader: String,
}

/// Outcome of a transaction that etcd executed.
struct Outcome {
    /// True if all comparisons held.
    succeeded: bool,
    /// Revision of etcd's store after it.
    revision: i64,
    /// Key and value of the witness, which a transaction reads after a failed comparison. `None` if it is missing.
    found: Option<KeyValue>,
}

impl EtcdStore {
    /// Creates the store without a call to etcd.
    #[must_use]
    pub fn new(access: EtcdAccess) -> Self {
        Self::by_clock(access, since_boot)
    }

    /// Like [`Self::new`], with a lease measured by `clock`.
    fn by_clock(access: EtcdAccess, clock: Clock) -> Self {
        let (members, abandoned, logged_leader) =
            (Members::new(access.clone()), Vec::new(), String::new());
        Self { access, clock, members, lead: None, abandoned, base: 0, logged_leader }
    }

    /// Returns a key below the prefix.
    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.access.prefix).into_bytes()
    }

    /// Reads all keys from `from` to `to` (exclusive), a page at a time. Reads only `from` if `to` is empty.
    async fn range(&mut self, from: Vec<u8>, to: Vec<u8>) -> Result<Vec<KeyValue>, StoreError> {
        let (mut found, mut next) = (Vec::new(), from);
        loop {
            let request = RangeRequest { key: next.clone(), range_end: to.clone(), limit: PAGE };
            let call = move |channel| {
                let client = KvClient::new(channel).max_decoding_message_size(ANSWER_MAX);
                let (mut client, request) = (client, request.clone());
                async move { Ok(client.range(request).await?.into_inner()) }
            };
            let answer = self.members.call("read", call).await?;
            let last = answer.kvs.last().map(|kv| kv.key.clone());
            found.extend(answer.kvs);
            match last {
                Some(mut last) if answer.more => {
                    // The smallest key after the last one.
                    last.push(0);
                    next = last;
                }
                _ => return Ok(found),
            }
        }
    }

    /// Reads one key.
    async fn get(&mut self, name: &str) -> Result<Option<KeyValue>, StoreError> {
        Ok(self.range(self.key(name), Vec::new()).await?.pop())
    }

    /// Executes a transaction: `success` if all comparisons hold. Otherwise it reads the key `witness`, which tells the
    /// caller whether an earlier attempt of the same call has succeeded.
    async fn txn(
        &mut self,
        compare: Vec<Compare>,
        success: Vec<RequestOp>,
        witness: &str,
    ) -> Result<Outcome, CallError> {
        let read = RangeRequest { key: self.key(witness), range_end: Vec::new(), limit: 1 };
        let request = TxnRequest { compare, success, failure: vec![op(Op::RequestRange(read))] };
        let call = move |channel| {
            let request = request.clone();
            async move { Ok(KvClient::new(channel).txn(request).await?.into_inner()) }
        };
        let answer = self.members.call("write", call).await?;
        let found = answer.responses.into_iter().find_map(|answer| match answer.response {
            Some(OpAnswer::ResponseRange(mut range)) => range.kvs.pop(),
            _ => None,
        });
        let revision = answer.header.map_or(0, |header| header.revision);
        Ok(Outcome { succeeded: answer.succeeded, revision, found })
    }

    /// Executes a write if this controller still leads and `condition` holds. Returns [`StoreError::Deposed`] if not,
    /// or if an earlier write has an unknown outcome. The rules in the file's head make repeated and late attempts
    /// harmless.
    async fn write(
        &mut self,
        condition: Compare,
        mut ops: Vec<RequestOp>,
    ) -> Result<(), StoreError> {
        let (leader, attempt) = (self.key("leader"), self.key("attempt"));
        let lead = self.lead.as_mut().filter(|lead| lead.lease.holds() && !lead.is_unsettled);
        let lead = lead.ok_or(StoreError::Deposed)?;
        lead.writes += 1;
        lead.is_unsettled = true;
        // etcd never reuses the number of a lease, so the name is unique.
        let name = format!("{:x}-{}", lead.id, lead.writes).into_bytes();
        let compare = vec![made_at(leader, lead.term), condition];
        ops.push(put(attempt, name.clone()));
        // The name under `attempt` shows that an attempt of this write succeeded.
        let is_own = |found: Option<KeyValue>| found.is_some_and(|kv| kv.value == name);
        let is_kept = match self.txn(compare, ops, "attempt").await {
            Ok(outcome) => Ok(outcome.succeeded || is_own(outcome.found)),
            // Rule 4: a full etcd may refuse a write that it has kept.
            Err(CallError::Refused(_)) if is_own(self.get("attempt").await?) => Ok(true),
            Err(error) => Err(error),
        };
        // After an unknown outcome the lead stays unsettled: [`Store::lead`] gives it up (rule 3).
        if !matches!(is_kept, Err(CallError::Unknown(_)))
            && let Some(lead) = &mut self.lead
        {
            lead.is_unsettled = false;
        }
        if is_kept? { Ok(()) } else { Err(StoreError::Deposed) }
    }

    /// Reads the whole fabric at version `base`, and applies the events of later versions.
    async fn read(&mut self) -> Result<Fabric, StoreError> {
        let version = number_of(self.get("version").await?)?;
        let base = number_of(self.get("base").await?)?;
        let mut fabric = self.read_base(base).await?;
        let (from, to) = (self.key(&log_key(base + 1)), self.key(&log_key(version + 1)));
        if version > base {
            for entry in self.range(from, to).await? {
                let next = fabric.version + 1;
                records::read(&mut fabric, next, &entry.value)?;
            }
        }
        if fabric.version != version {
            let reason = format!("there are versions up to {} of {version}", fabric.version);
            return Err(StoreError::Damaged { version, reason });
        }
        self.base = base;
        Ok(fabric)
    }

    /// Reads the whole fabric at version `base`. Fails if a part is missing.
    async fn read_base(&mut self, base: u64) -> Result<Fabric, StoreError> {
        let (from, to) = (self.key(&parts_key(base, 0)), self.key(&parts_key(base, u64::MAX)));
        let parts = self.range(from, to).await?;
        // An older release wrote no count. Then only gaps, and the lack of all parts, are noticed.
        let count = match number_of(self.get(&count_key(base)).await?)? {
            0 => parts.len().max(usize::from(base > 0)) as u64,
            count => count,
        };
        // Parts without a gap have the numbers from 0.
        let is_in_place =
            |(number, part): (u64, &KeyValue)| part.key == self.key(&parts_key(base, number));
        if parts.len() as u64 != count || !(0..).zip(&parts).all(is_in_place) {
            let reason = format!("it has {} of {count} parts", parts.len());
            return Err(StoreError::Damaged { version: base, reason });
        }
        let mut fabric = Fabric { version: base, ..Fabric::default() };
        for part in parts {
            records::read(&mut fabric, base, &part.value)?;
        }
        Ok(fabric)
    }

    /// Returns true if the current key `leader` is the one that this controller made at revision `term`.
    async fn has_leader_key(&mut self, term: i64) -> Result<bool, StoreError> {
        Ok(self.get("leader").await?.is_some_and(|leader| leader.create_revision == term))
    }

    /// Takes the lead if no controller has it. Otherwise reports the leader to `report_leader`, and returns `None`.
    async fn try_to_lead(
        &mut self,
        report_leader: &(impl Fn(&str) + Sync),
    ) -> Result<Option<Leadership>, StoreError> {
        if let Some(leader) = self.get("leader").await? {
            let name = String::from_utf8_lossy(&leader.value).into_owned();
            report_leader(&format!("{name} leads"));
            if name != self.logged_leader {
                log::info!("stands by: {name} leads");
                self.logged_leader = name;
            }
            return Ok(None);
        }
        let ttl = i64::try_from(self.access.lease.as_secs()).unwrap_or(i64::MAX);
        // Id 0 lets etcd choose the number of the lease.
        let request = LeaseGrantRequest { ttl, id: 0 };
        // Read before the call, so that the lease ends here before it ends in etcd.
        let began = (self.clock)();
        let call = move |channel| async move {
            Ok(LeaseClient::new(channel).lease_grant(request).await?.into_inner())
        };
        let grant = self.members.call("grant a lease", call).await?;
        // Counts as abandoned until the lead is certain. A later attempt revokes abandoned leases.
        self.abandoned.push(grant.id);
        let put = PutRequest {
            key: self.key("leader"),
            value: self.access.name.clone().into_bytes(),
            lease: grant.id,
        };
        // The witness `leader` shows who leads if the comparison fails.
        let nobody_leads = made_at(self.key("leader"), 0);
        let outcome = self.txn(vec![nobody_leads], vec![op(Op::RequestPut(put))], "leader").await?;
        let term = match outcome.found {
            _ if outcome.succeeded => outcome.revision,
            // An earlier attempt of this call has succeeded, and its answer was lost.
            Some(leader) if leader.lease == grant.id => leader.create_revision,
            _ => return Ok(None), // another controller was first
        };
        self.abandoned.retain(|id| *id != grant.id);
        let ttl = Duration::from_secs(grant.ttl.unsigned_abs());
        let (renewal, lease) = Lease::new(self.clock, began + ttl);
        let (members, clock) = (self.members.separate(), self.clock);
        let (task_lease, task_renewal) = (lease.clone(), renewal.clone());
        // Connections of its own, so that a slow call of the store does not delay the renewal.
        let keep_alive_task = tokio::spawn(async move {
            let reason =
                keep_alive(members, (grant.id, ttl), clock, task_lease, &task_renewal).await;
            log::error!("the lease is lost: {reason}; this controller does not lead any more");
            task_renewal.end();
        });
        let (writes, is_unsettled) = (0, false);
        Ok(Some(Leadership {
            id: grant.id,
            term,
            lease,
            renewal,
            keep_alive_task,
            writes,
            is_unsettled,
        }))
    }

    /// Gives up the lead, and ends its lease for this process. [`Self::revoke_abandoned`] ends it in etcd.
    fn give_up(&mut self) {
        self.abandoned.extend(self.lead.take().map(|lead| lead.id));
    }

    /// Ends the leases of earlier leads, so that no controller waits for their timeout.
    async fn revoke_abandoned(&mut self) -> Result<(), StoreError> {
        while let Some(&id) = self.abandoned.last() {
            let request = LeaseRevokeRequest { id };
            let call = move |channel| async move {
                LeaseClient::new(channel).lease_revoke(request).await.map(|_| ())
            };
            match self.members.call("end a lease", call).await {
                // etcd refuses to end an unknown lease.
                Ok(()) | Err(CallError::Refused(_)) => _ = self.abandoned.pop(),
                Err(CallError::Unreached(error) | CallError::Unknown(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the comparison that the number under a key is `value`. 0 stands for a missing key.
    fn number_is(&self, name: &str, value: u64) -> Compare {
        if value == 0 {
            return made_at(self.key(name), 0);
        }
        let value = TargetUnion::Value(value.to_string().into_bytes());
        compare(self.key(name), CompareTarget::Value, value)
    }
}

/// Renews a lease until it is lost. Returns the reason. A lease is lost if etcd does not confirm it for its
/// duration, even if etcd confirms it later: another controller may lead.
async fn keep_alive(
    mut members: Members,
    (id, ttl): (i64, Duration),
    clock: Clock,
    mut lease: Lease,
    renewal: &Renewal,
) -> String {
    let mut logged = String::new();
    // A sixth of the lease leaves time for several attempts.
    let mut wait = ttl / 6;
    loop {
        sleep(wait).await;
        let call = move |channel| async move {
            // Read before the request, so that the lease ends here before it ends in etcd.
            let sent_at = clock();
            let one = tokio_stream::once(LeaseKeepAliveRequest { id });
            let mut answers = LeaseClient::new(channel).lease_keep_alive(one).await?.into_inner();
            let answer = answers.message().await?;
            let answer = answer.ok_or_else(|| Status::unavailable("no answer"))?;
            Ok((sent_at, answer.ttl))
        };
        let outcome = tokio::select! {
            outcome = members.call("keep the lease", call) => outcome,
            () = lease.end() => Err(CallError::Unknown(StoreError::Deposed)),
        };
        if !lease.holds() {
            return "it ran out while etcd did not answer in time, or this process stood still"
                .to_owned();
        }
        match outcome {
            Ok((sent_at, remaining)) if remaining > 0 => {
                renewal.extend(sent_at + ttl);
                logged.clear();
                wait = ttl / 6;
            }
            // etcd answers with a remaining time of 0 for an unknown lease.
            Ok(_) => return "etcd does not know it any more".to_owned(),
            Err(error) => {
                let error = StoreError::from(error).to_string();
                if logged != error {
                    log::warn!("etcd did not keep the lease ({error}); it is asked again");
                    logged = error;
                }
                wait = RETRY_PAUSE.min(ttl / 6);
            }
        }
    }
}

/// Wraps an operation for a transaction.
fn op(request: Op) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Returns the operation that writes a key.
fn put(key: Vec<u8>, value: Vec<u8>) -> RequestOp {
    op(Op::RequestPut(PutRequest { key, value, lease: 0 }))
}

/// Returns a comparison for equality of a key's property `target`, such as its value, with `value`.
fn compare(key: Vec<u8>, target: CompareTarget, value: TargetUnion) -> Compare {
    let (result, target) = (CompareResult::Equal as i32, target as i32);
    Compare { result, target, key, target_union: Some(value) }
}

/// Returns a comparison that the key was made at this revision of etcd. Revision 0 stands for a missing key.
fn made_at(key: Vec<u8>, revision: i64) -> Compare {
    compare(key, CompareTarget::Create, TargetUnion::CreateRevision(revision))
}

/// Parses the number under a key; 0 if the key is missing.
fn number_of(kv: Option<KeyValue>) -> Result<u64, StoreError> {
    let Some(kv) = kv else { return Ok(0) };
    let text = String::from_utf8_lossy(&kv.value).into_owned();
    let reason = || format!("{} is {text:?}", String::from_utf8_lossy(&kv.key));
    text.parse().map_err(|_| StoreError::Damaged { version: 0, reason: reason() })
}

impl Store for EtcdStore {
    /// Waits for the lead and returns its term. Keeps the current lead if it is still valid. Checks every
    /// `RETRY_PAUSE` whether another controller still leads.
    async fn lead(
        &mut self,
        report_leader: impl Fn(&str) + Send + Sync,
    ) -> Result<u64, StoreError> {
        loop {
            let held = self.lead.as_ref().filter(|lead| lead.lease.holds() && !lead.is_unsettled);
            if let Some(term) = held.map(|lead| lead.term)
                && self.has_leader_key(term).await?
            {
                return Ok(term.unsigned_abs());
            }
            self.give_up();
            self.revoke_abandoned().await?;
            match self.try_to_lead(&report_leader).await? {
                Some(lead) => {
                    self.logged_leader.clear();
                    let term = lead.term.unsigned_abs();
                    self.lead = Some(lead);
                    return Ok(term);
                }
                None => sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// Returns the lease of the lead; an ended one without a lead.
    fn lease(&self) -> Lease {
        let over = || Lease::new(self.clock, Duration::ZERO).1;
        self.lead.as_ref().map_or_else(over, |lead| lead.lease.clone())
    }

    /// Reads the stored fabric. A controller that was deposed meanwhile may have read keys of several versions, which
    /// is no damage.
    async fn load(&mut self) -> Result<Fabric, StoreError> {
        let loaded = self.read().await;
        let term = self.lead.as_ref().map(|lead| lead.term);
        if let (Err(StoreError::Damaged { .. }), Some(term)) = (&loaded, term)
            && !self.has_leader_key(term).await?
        {
            return Err(StoreError::Deposed);
        }
        loaded
    }

    fn base(&self) -> u64 {
        self.base
    }

    /// Writes the events of the next version, if the version before it is the stored one.
    async fn append(&mut self, version: u64, events: &[Event]) -> Result<(), StoreError> {
        // `self.write` also checks that this controller leads.
        let before = self.number_is("version", version - 1);
        let entry = put(self.key(&log_key(version)), records::write(events));
        let number = put(self.key("version"), version.to_string().into_bytes());
        self.write(before, vec![entry, number]).await
    }

    /// Writes the whole fabric in parts, then sets `base` and deletes older parts and the log in one transaction. The
    /// parts do not fit into one request. Readers ignore them until `base` names their version.
    async fn compact(&mut self, fabric: &Fabric) -> Result<(), StoreError> {
        let (version, before) = (fabric.version, self.number_is("base", self.base));
        let mut count = 0;
        for part in records::parts(fabric) {
            let part = put(self.key(&parts_key(version, count)), part);
            self.write(before.clone(), vec![part]).await?;
            count += 1;
        }
        let deletion = |from: String, to: String| {
            let (key, range_end) = (self.key(&from), self.key(&to));
            op(Op::RequestDeleteRange(DeleteRangeRequest { key, range_end }))
        };
        let ops = vec![
            put(self.key("base"), version.to_string().into_bytes()),
            put(self.key("version"), version.to_string().into_bytes()),
            put(self.key(&count_key(version)), count.to_string().into_bytes()),
            deletion(parts_key(0, 0), parts_key(version, 0)),
            // Parts of an unfinished compaction by a leader of another release.
            deletion(parts_key(version, count), parts_key(version, u64::MAX)),
            deletion(log_key(0), log_key(version + 1)),
        ];
        self.write(before, ops).await?;
        self.base = version;
        Ok(())
    }

    /// Gives up the lead and ends its lease, so that another controller can lead at once.
    async fn resign(&mut self) {
        self.give_up();
        let _ = self.revoke_abandoned().await; // otherwise they end by themselves
    }
}

/// Returns the key of a log entry. Leading zeros make the order of keys the order of versions.
fn log_key(version: u64) -> String {
    format!("log/{version:020}")
}

/// Returns the key of a part of the whole fabric.
fn parts_key(version: u64, part: u64) -> String {
    format!("parts/{version:020}/{part:020}")
}

/// Returns the key of the number of parts. It is behind the keys of all parts.
fn count_key(version: u64) -> String {
    format!("parts/{version:020}/count")
}

#[cfg(test)]
mod tests;
