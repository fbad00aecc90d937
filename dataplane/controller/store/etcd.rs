//! A store in etcd, for several controllers: who has the key `leader`, by a lease, writes; each write asks in the same transaction
//! whether that key is still the one that this controller made, so that whoever was deposed can write nothing.
//!
//! Below a prefix there are `leader`, `version`, `base`, `log/VERSION`, and `parts/VERSION/NUMBER`, which is all of it at version
//! `base`.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::{Store, StoreError, records};
use crate::admin::channel_to;
use crate::controller::client::ALIVE;
use crate::controller::etcd_api::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::controller::etcd_api::kv_client::KvClient;
use crate::controller::etcd_api::lease_client::LeaseClient;
use crate::controller::etcd_api::request_op::Request as Op;
use crate::controller::etcd_api::{
    Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, LeaseRevokeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use crate::controller::event::Event;
use crate::controller::fabric::Fabric;

/// etcd has so long to answer one call.
const CALL_MAX: Duration = Duration::from_secs(5);
/// Whoever stands by looks so often whether somebody leads.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes of an answer.
const ANSWER_MAX: usize = 64 << 20;
/// Keys that one answer has at most.
const PAGE: i64 = 64;

/// Where etcd is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAccess {
    /// Its members, as in `http://10.0.9.1:2379`.
    pub members: Vec<String>,
    /// What all keys begin with.
    pub prefix: String,
    /// A leader that is not heard of for so long is none.
    pub lease: Duration,
    /// With https: etcd's authority, our certificate and its key, files in PEM.
    pub tls: Option<[PathBuf; 3]>,
    /// What others are told of this controller while it leads.
    pub name: String,
}

/// The lease that this controller leads by.
#[derive(Debug)]
struct Lead {
    lease: i64,
    /// The revision at which the key was made.
    term: i64,
    lost: watch::Receiver<bool>,
    keeping: JoinHandle<()>,
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

/// etcd.
#[derive(Debug)]
pub struct EtcdStore {
    access: EtcdAccess,
    /// The member that answered last.
    member: usize,
    channel: Option<Channel>,
    lead: Option<Lead>,
    /// Whoever leads, as it was last told of in the log.
    told: String,
}

/// What was not answered, in the words of who waits for it.
fn unavailable(what: &str, status: &Status) -> StoreError {
    let (code, said) = (status.code(), status.message());
    let fix = match code {
        Code::ResourceExhausted => {
            "it is full: compact and defragment it, raise its quota, and disarm its alarm (`etcdctl alarm disarm`)"
        }
        Code::Unauthenticated | Code::PermissionDenied => {
            "it does not let this controller in: see `etcd_certificate`"
        }
        _ => "it is looked for again; what runs goes on meanwhile",
    };
    StoreError::Unavailable(format!("etcd did not {what} ({code:?}: {said}); {fix}"))
}

/// A member has so long to answer one call: less where others could.
fn answer_max(access: &EtcdAccess) -> Duration {
    if access.members.len() > 1 { CALL_MAX.min(access.lease / 3) } else { CALL_MAX }
}

/// It was not answered, which another member may do.
fn is_of_member(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Cancelled
    )
}

impl EtcdStore {
    /// The store there; nobody is asked yet.
    #[must_use]
    pub fn new(access: EtcdAccess) -> Self {
        Self { access, member: 0, channel: None, lead: None, told: String::new() }
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.access.prefix).into_bytes()
    }

    /// A member that takes connections.
    async fn channel(&mut self) -> Result<Channel, StoreError> {
        if let Some(channel) = &self.channel {
            return Ok(channel.clone());
        }
        let mut reasons = Vec::new();
        for _ in 0..self.access.members.len() {
            let url = &self.access.members[self.member];
            match channel_to(url, self.access.tls.as_ref(), Some(ALIVE)).await {
                Ok(channel) => {
                    self.channel = Some(channel.clone());
                    return Ok(channel);
                }
                Err(reason) => reasons.push(format!("{url}: {reason}")),
            }
            self.next_member();
        }
        let reason = format!(
            "no member of etcd can be reached ({}); it is looked for again",
            reasons.join("; ")
        );
        Err(StoreError::Unavailable(format!("{reason}; what runs goes on meanwhile")))
    }

    fn next_member(&mut self) {
        self.channel = None;
        self.member = (self.member + 1) % self.access.members.len().max(1);
    }

    /// Makes a call that does no harm when it is made twice: if a member does not answer, the next ones are asked in turn for a while,
    /// as when they elect.
    async fn call<T, F>(&mut self, what: &str, call: impl Fn(Channel) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let until = Instant::now() + CALL_MAX;
        let members = self.access.members.len();
        let answer_max = answer_max(&self.access);
        loop {
            let channel = self.channel().await?;
            let late = || Err(Status::deadline_exceeded(format!("no answer for {answer_max:?}")));
            let answered = timeout(answer_max, call(channel)).await.unwrap_or_else(|_| late());
            let status = match answered {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => status,
            };
            self.next_member();
            if members < 2 || Instant::now() >= until || !is_of_member(&status) {
                return Err(unavailable(what, &status));
            }
            sleep(LOOK).await;
        }
    }

    async fn range(&mut self, from: Vec<u8>, to: Vec<u8>) -> Result<Vec<KeyValue>, StoreError> {
        let (mut found, mut next) = (Vec::new(), from);
        loop {
            let asked = RangeRequest { key: next.clone(), range_end: to.clone(), limit: PAGE };
            let call = |channel| {
                let (mut client, asked) = (KvClient::new(channel), asked.clone());
                client = client.max_decoding_message_size(ANSWER_MAX);
                async move { client.range(asked).await }
            };
            let answer = self.call("read", call).await?;
            let last = answer.kvs.last().map(|kv| kv.key.clone());
            found.extend(answer.kvs);
            match last {
                Some(mut last) if answer.more => {
                    last.push(0);
                    next = last;
                }
                _ => return Ok(found),
            }
        }
    }

    async fn get(&mut self, name: &str) -> Result<Option<KeyValue>, StoreError> {
        Ok(self.range(self.key(name), Vec::new()).await?.pop())
    }

    /// A transaction; true when its conditions held.
    async fn txn(
        &mut self,
        compare: Vec<Compare>,
        success: Vec<RequestOp>,
    ) -> Result<(bool, i64), StoreError> {
        let asked = TxnRequest { compare, success, failure: Vec::new() };
        let call = |channel| {
            let asked = asked.clone();
            async move { KvClient::new(channel).txn(asked).await }
        };
        let answer = self.call("write", call).await?;
        Ok((answer.succeeded, answer.header.map_or(0, |header| header.revision)))
    }

    /// Writes, if this controller still leads and `more` holds.
    async fn write(&mut self, more: Vec<Compare>, ops: Vec<RequestOp>) -> Result<(), StoreError> {
        let Some(lead) = self.lead.as_ref().filter(|lead| !*lead.lost.borrow()) else {
            return Err(StoreError::Deposed);
        };
        let mut compare = vec![made_at(self.key("leader"), lead.term)];
        compare.extend(more);
        if self.txn(compare, ops).await?.0 { Ok(()) } else { Err(StoreError::Deposed) }
    }

    /// The key `leader` is the one that this controller made.
    async fn is_ours(&mut self, term: i64) -> Result<bool, StoreError> {
        Ok(self.get("leader").await?.is_some_and(|there| there.create_revision == term))
    }

    /// Takes the lead if nobody has it.
    async fn try_to_lead(
        &mut self,
        told: &(impl Fn(&str) + Sync),
    ) -> Result<Option<Lead>, StoreError> {
        if let Some(there) = self.get("leader").await? {
            let name = String::from_utf8_lossy(&there.value).into_owned();
            told(&format!("{name} leads"));
            if name != self.told {
                log::info!("stands by: {name} leads");
                self.told = name;
            }
            return Ok(None);
        }
        let ttl = i64::try_from(self.access.lease.as_secs()).unwrap_or(i64::MAX);
        let asked = LeaseGrantRequest { ttl, id: 0 };
        let began = Instant::now();
        let call = |channel| async move { LeaseClient::new(channel).lease_grant(asked).await };
        let grant = self.call("grant a lease", call).await?;
        let put = PutRequest {
            key: self.key("leader"),
            value: self.access.name.clone().into_bytes(),
            lease: grant.id,
        };
        let won =
            self.txn(vec![made_at(self.key("leader"), 0)], vec![op(Op::RequestPut(put))]).await;
        let (true, term) = won.as_ref().map_or((false, 0), |won| *won) else {
            self.revoke(grant.id).await;
            return won.map(|_| None);
        };
        let (lost_is, lost) = watch::channel(false);
        let lease = (grant.id, Duration::from_secs(grant.ttl.unsigned_abs()));
        // By a connection of its own, so that it goes to another member by itself.
        let mut keeper = Self { member: self.member, ..Self::new(self.access.clone()) };
        let keeping = tokio::spawn(async move {
            let reason = keeper.keep_alive(lease, began).await;
            log::error!("the lease is lost: {reason}; this controller does not lead any more");
            let _ = lost_is.send(true);
        });
        Ok(Some(Lead { lease: grant.id, term, lost, keeping }))
    }

    /// Keeps a lease until it is lost; returns why. A lease that was not confirmed for as long as it lasts is lost, whatever etcd
    /// says later: somebody else may lead. A member that does not answer is given up for the next.
    async fn keep_alive(&mut self, (id, ttl): (i64, Duration), began: Instant) -> String {
        let mut until = began + ttl;
        let mut wait = ttl / 3;
        loop {
            sleep(wait).await;
            let asked = Instant::now();
            if asked >= until {
                return "it ran out while this process stood still, or etcd did not answer"
                    .to_owned();
            }
            let answer_max = if self.access.members.len() > 1 { ttl / 6 } else { ttl };
            let answer = timeout_at(until.min(asked + answer_max), self.ask_to_keep(id)).await;
            match answer {
                Ok(Ok(Some(answer))) if answer.ttl > 0 => {
                    (until, wait) = (asked + ttl, ttl / 3);
                    continue;
                }
                Ok(Ok(_)) => return "etcd does not know it any more".to_owned(),
                Ok(Err(reason)) => {
                    log::warn!("etcd did not keep the lease ({reason}); it is asked again");
                }
                Err(_) if Instant::now() >= until => {
                    return "etcd did not answer in time".to_owned();
                }
                Err(_) => log::warn!("a member of etcd does not answer; another is asked"),
            }
            self.next_member();
            wait = LOOK.min(ttl / 6);
        }
    }

    async fn ask_to_keep(&mut self, id: i64) -> Result<Option<LeaseKeepAliveResponse>, String> {
        let channel = self.channel().await.map_err(|error| error.to_string())?;
        let one = tokio_stream::once(LeaseKeepAliveRequest { id });
        let answers = LeaseClient::new(channel).lease_keep_alive(one).await;
        let mut answers = answers.map_err(|status| status.message().to_owned())?.into_inner();
        answers.message().await.map_err(|status| status.message().to_owned())
    }

    async fn revoke(&mut self, lease: i64) {
        let asked = LeaseRevokeRequest { id: lease };
        let call = |channel| async move { LeaseClient::new(channel).lease_revoke(asked).await };
        let _ = self.call("end a lease", call).await; // it ends by itself otherwise
    }
}

fn op(request: Op) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn put(key: Vec<u8>, value: Vec<u8>) -> RequestOp {
    op(Op::RequestPut(PutRequest { key, value, lease: 0 }))
}

fn compare(key: Vec<u8>, target: CompareTarget, value: TargetUnion) -> Compare {
    let (result, target) = (CompareResult::Equal as i32, target as i32);
    Compare { result, target, key, target_union: Some(value) }
}

/// The key was made at this revision; at 0: there is none.
fn made_at(key: Vec<u8>, revision: i64) -> Compare {
    compare(key, CompareTarget::Create, TargetUnion::CreateRevision(revision))
}

fn number_of(kv: Option<KeyValue>) -> Result<u64, StoreError> {
    let Some(kv) = kv else { return Ok(0) };
    let text = String::from_utf8_lossy(&kv.value).into_owned();
    let reason = || format!("{} is {text:?}", String::from_utf8_lossy(&kv.key));
    text.parse().map_err(|_| StoreError::Damaged { version: 0, reason: reason() })
}

impl Store for EtcdStore {
    async fn lead(&mut self, told: impl Fn(&str) + Send + Sync) -> Result<u64, StoreError> {
        loop {
            let held = self.lead.as_ref().filter(|lead| !*lead.lost.borrow()).map(|lead| lead.term);
            // After a write that failed it may still be ours.
            if let Some(term) = held
                && self.is_ours(term).await?
            {
                return Ok(term.unsigned_abs());
            }
            self.lead = None;
            match self.try_to_lead(&told).await? {
                Some(lead) => {
                    self.told.clear();
                    let term = lead.term.unsigned_abs();
                    self.lead = Some(lead);
                    return Ok(term);
                }
                None => sleep(LOOK).await,
            }
        }
    }

    async fn load(&mut self) -> Result<Fabric, StoreError> {
        let version = number_of(self.get("version").await?)?;
        let base = number_of(self.get("base").await?)?;
        let mut fabric = Fabric::default();
        let (from, to) = (self.key(&parts_key(base, 0)), self.key(&parts_key(base, u64::MAX)));
        for part in self.range(from, to).await? {
            records::read(&mut fabric, base, &part.value)?;
        }
        fabric.version = base;
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
        Ok(fabric)
    }

    async fn append(&mut self, version: u64, events: &[Event]) -> Result<(), StoreError> {
        let before = match version - 1 {
            0 => made_at(self.key("version"), 0),
            before => {
                let value = before.to_string().into_bytes();
                compare(self.key("version"), CompareTarget::Value, TargetUnion::Value(value))
            }
        };
        let entry = put(self.key(&log_key(version)), records::write(events));
        let number = put(self.key("version"), version.to_string().into_bytes());
        match self.write(vec![before], vec![entry, number]).await {
            // Nobody but the leader writes a version. So it is kept by a try whose answer was lost, if it is there and the lead ours.
            Err(StoreError::Deposed) => {
                let term = self.lead.as_ref().map(|lead| lead.term).ok_or(StoreError::Deposed)?;
                let is_kept = number_of(self.get("version").await?)? == version;
                if is_kept && self.is_ours(term).await? { Ok(()) } else { Err(StoreError::Deposed) }
            }
            other => other,
        }
    }

    async fn compact(&mut self, fabric: &Fabric) -> Result<(), StoreError> {
        let version = fabric.version;
        for (at, part) in (0..).zip(records::parts(fabric)) {
            let part = put(self.key(&parts_key(version, at)), part);
            self.write(Vec::new(), vec![part]).await?;
        }
        let gone = |from: Vec<u8>, to: Vec<u8>| {
            op(Op::RequestDeleteRange(DeleteRangeRequest { key: from, range_end: to }))
        };
        let base = put(self.key("base"), version.to_string().into_bytes());
        let old = gone(self.key(&parts_key(0, 0)), self.key(&parts_key(version, 0)));
        let log = gone(self.key(&log_key(0)), self.key(&log_key(version + 1)));
        let number = put(self.key("version"), version.to_string().into_bytes());
        self.write(Vec::new(), vec![base, number, old, log]).await
    }

    async fn resign(&mut self) {
        let lease = self.lead.take().map(|lead| lead.lease);
        if let Some(lease) = lease {
            self.revoke(lease).await;
        }
    }

    async fn deposed(&mut self) -> StoreError {
        if let Some(lead) = &mut self.lead {
            let _ = lead.lost.wait_for(|lost| *lost).await;
        }
        StoreError::Deposed
    }
}

/// Numbers in the order of their text.
fn log_key(version: u64) -> String {
    format!("log/{version:020}")
}

fn parts_key(version: u64, part: u64) -> String {
    format!("parts/{version:020}/{part:020}")
}
