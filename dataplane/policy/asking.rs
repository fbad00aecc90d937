//! Questions to members about their queues, for policies that ask some of them before they decide on a task (`lsq-sample`,
//! `jsq(d)`, `ppot`), where asking takes messages and time.
//!
//! A task waits for its answers in its pool's queue. Whom its decision will look at is drawn when it comes, from the random source as
//! it is then; the decision draws the same again. What an answer tells is the queue at the moment at which the member was asked:
//! what this dispatcher has sent there since it asked is added, since it left behind the question and arrived behind it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;

use super::shortest::SAMPLES_MAX;
use super::{Asked, Rng};
use crate::limits::PROBE_PATIENCE_NS;
use crate::state::Member;

/// A member that is to be asked, under this number, which its answer repeats.
pub type Probe = (Member, u16);

/// What a task's decision waits for.
#[derive(Clone, Debug)]
struct Question {
    /// What the decision will draw from.
    rng: Rng,
    /// Who was asked, and how many tasks had been sent there by then.
    asked: ArrayVec<(Member, u32), SAMPLES_MAX>,
    /// Those that have not answered, a bit each.
    open: u16,
    /// How many of them have been told that they are asked.
    said: u8,
    asked_ns: u64,
}

const _: () = assert!(SAMPLES_MAX <= u16::BITS as usize);

/// Whether an answer was to anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was, and some task may go now.
    Ready,
    /// It was.
    Taken,
    /// Nobody waits for it, or no more.
    Late,
}

/// The questions of the tasks that wait, in their order, and what members have answered.
#[derive(Debug)]
pub(super) struct Asking {
    /// What decisions read: a member's queue as it answered last, and what was sent there since it was asked.
    queues: Arc<[AtomicU32]>,
    /// Tasks sent to each member.
    sent: Box<[u32]>,
    /// Number of the question that each member answered last.
    told: Box<[Option<u16>]>,
    questions: VecDeque<Question>,
    /// Number of the first of them.
    first: u16,
    /// The one whose members are to be told next that they are asked, as the number of those before it that wait.
    next: usize,
    /// Members that were asked and did not answer in time.
    unanswered: u64,
}

impl Asking {
    /// For so many members and tasks that wait.
    pub fn new(members: usize, waiting: usize) -> Self {
        Self {
            queues: (0..members).map(|_| AtomicU32::new(0)).collect(),
            sent: vec![0; members].into(),
            told: vec![None; members].into(),
            questions: VecDeque::with_capacity(waiting),
            first: 0,
            next: 0,
            unanswered: 0,
        }
    }

    /// What decisions read.
    pub fn queues(&self) -> Arc<[AtomicU32]> {
        Arc::clone(&self.queues)
    }

    /// There is room for one more question.
    pub fn has_room(&self) -> bool {
        self.questions.len() < self.questions.capacity()
    }

    /// A task waits, whose decision will ask these.
    pub fn push(&mut self, rng: Rng, asked: &Asked, now_ns: u64) {
        let sent = &self.sent;
        let asked: ArrayVec<_, SAMPLES_MAX> =
            asked.iter().map(|&member| (member, sent[member.index()])).collect();
        let open = ((1_u32 << asked.len()) - 1) as u16;
        self.questions.push_back(Question { rng, asked, open, said: 0, asked_ns: now_ns });
    }

    /// The first task waits no longer.
    pub fn pop(&mut self) {
        if let Some(question) = self.questions.pop_front() {
            self.unanswered += u64::from(question.open.count_ones());
            self.first = self.first.wrapping_add(1);
            self.next = self.next.saturating_sub(1);
        }
    }

    /// The last task that waits does so no longer.
    pub fn pop_last(&mut self) {
        self.questions.pop_back();
        self.next = self.next.min(self.questions.len());
    }

    /// The next member that is to be told that it is asked.
    pub fn next_probe(&mut self) -> Option<Probe> {
        while let Some(question) = self.questions.get_mut(self.next) {
            if let Some(&(member, _)) = question.asked.get(usize::from(question.said)) {
                question.said += 1;
                return Some((member, self.first.wrapping_add(self.next as u16)));
            }
            self.next += 1;
        }
        None
    }

    /// A member has answered the question of this number: it had so many tasks.
    pub fn answer(&mut self, member: Member, number: u16, queue: u32) -> Answer {
        let at = usize::from(number.wrapping_sub(self.first));
        let Some(question) = self.questions.get_mut(at) else { return Answer::Late };
        // A member that is asked twice (two draws may coincide) answers twice.
        let is_open = |place: usize| question.open >> place & 1 != 0;
        let mut asked = question.asked.iter().enumerate();
        let Some((place, &(_, sent))) =
            asked.find(|&(place, (one, _))| *one == member && is_open(place))
        else {
            return Answer::Late;
        };
        question.open &= !(1 << place);
        let is_first = at == 0 && question.open == 0;
        let told = &mut self.told[member.index()];
        // An answer that was overtaken by a later one tells nothing.
        if told.is_none_or(|last| number.wrapping_sub(last) < 1 << 15) {
            *told = Some(number);
            let since = self.sent[member.index()].wrapping_sub(sent);
            self.queues[member.index()].store(queue.saturating_add(since), Relaxed);
        }
        if is_first { Answer::Ready } else { Answer::Taken }
    }

    /// What the first task's decision is to draw from, once it has its answers, or has waited for them for long.
    pub fn ready(&self, now_ns: u64) -> Option<Rng> {
        let first = self.questions.front()?;
        let is_late = now_ns.saturating_sub(first.asked_ns) >= PROBE_PATIENCE_NS;
        (first.open == 0 || is_late).then(|| first.rng.clone())
    }

    /// A task was sent to a member.
    pub fn sent(&mut self, member: Member) {
        let sent = &mut self.sent[member.index()];
        *sent = sent.wrapping_add(1);
        let queue = &self.queues[member.index()];
        queue.store(queue.load(Relaxed).saturating_add(1), Relaxed);
    }

    /// Members that did not answer since this was last asked.
    pub fn take_unanswered(&mut self) -> u64 {
        std::mem::take(&mut self.unanswered)
    }
}
