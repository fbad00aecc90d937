//! Tests of peers that write forbidden values. The correct end refuses the values and continues.

use super::super::channel::NO_REPLY;
use super::super::layout::HEAD;
use super::super::protocol::{ChannelWords, SharedWord, claim, control, credit};
use super::*;
use proptest::prelude::*;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Returns a function that overwrites the worker's published count of completed tasks.
fn credits(region: &WorkerRegion) -> impl Fn(u64) + '_ {
    let words = region.words(0);
    move |count| words.credit[credit::DONE].store(count, Relaxed)
}

// promise: agent.2
#[test]
fn credit_for_an_ungiven_task_is_an_error() {
    let (region, mut channel, worker_end) = joined(4, 16);
    let set_count = credits(&region);
    set_count(1);
    assert_eq!(channel.collect(), Err(CreditError::TooMany { given: 0, found: 1 }));
    set_count(0);
    assert!(channel.send(ids(0), &[]));
    echo(&worker_end);
    assert_eq!(channel.collect(), Ok(0..1));
    // A second answer to the same task.
    set_count(2);
    assert_eq!(channel.collect(), Err(CreditError::TooMany { given: 1, found: 2 }));
    set_count(u64::MAX);
    assert!(matches!(channel.collect(), Err(CreditError::TooMany { .. })));
    set_count(0);
    assert_eq!(channel.collect(), Err(CreditError::Backwards { before: 1, found: 0 }));
    // The dispatcher's own account is unchanged.
    assert_eq!((channel.sender().outstanding(), channel.sender().next()), (0, 1));
}

#[test]
fn worker_cannot_end_its_list() {
    let (region, mut channel, mut worker_end) = joined(4, 16);
    worker_end.complete_in_any_order();
    assert!((0..3).all(|seq| channel.send(ids(seq), &[])));
    echo(&worker_end);
    assert_eq!(channel.collect(), Ok(0..1));
    region.words(0).credit[credit::LISTED].store(0, Relaxed);
    assert_eq!(channel.collect(), Ok(1..1), "nothing is completed");
    echo(&worker_end);
    assert_eq!(channel.collect(), Err(CreditError::BadList { count: 1 }));
}

#[test]
fn forged_or_oversized_answer_is_refused() {
    let (region, mut channel, worker_end) = joined(4, 16);
    assert!((0..2).all(|seq| channel.send(ids(seq), &[])));
    echo(&worker_end);
    // One answer with credit for two tasks, as if it were answered twice.
    credits(&region)(2);
    assert_eq!(channel.collect(), Ok(0..2));
    assert!(matches!(channel.outcome(task(0)), Outcome::Reply { .. }));
    assert_eq!(channel.outcome(task(1)), Outcome::Refused);
    // Second word of the first answer's head; the upper half is the answer's length, at most 16. The answer follows
    // the task's part.
    let area = region.area(0);
    let len_word = &area[region.shape().part() / 8 + 1];
    for len in [17, 1000, NO_REPLY - 1] {
        len_word.store(u64::from(len) << 32, Relaxed);
        assert_eq!(channel.outcome(task(0)), Outcome::Refused, "{len} bytes");
    }
    len_word.store(16 << 32, Relaxed);
    assert_eq!(channel.outcome(task(0)), Outcome::Reply { len: 16, service_ns: 0 });
}

// promise: agent.2
#[test]
fn overflowing_worker_spoils_only_its_replies() {
    let identities = [WorkerIdentity { id: 0, pool: 0 }, WorkerIdentity { id: 1, pool: 0 }];
    let region = Arc::new(WorkerRegion::heap(&identities, 2, 16).unwrap());
    let mut channels = [region.channel(0), region.channel(1)];
    let worker_ends = [0, 1].map(|index| {
        let worker_end = region.claim(index).unwrap().unwrap();
        let sender = channels[index].sender_mut();
        sender.grant(sender.claim());
        worker_end.start();
        worker_end
    });
    for channel in &mut channels {
        assert!(channel.send(ids(0), b"a") && channel.send(ids(1), b"b"));
    }
    // Worker 0 answers its first task and overwrites the rest of its area, from the bytes of that answer on.
    echo(&worker_ends[0]);
    let area = region.area(0);
    let answer_bytes = (region.shape().part() + HEAD) / 8;
    area[answer_bytes..].iter().for_each(|word| SharedWord::store(word, u64::MAX, Relaxed));
    credits(&region)(2);
    assert_eq!(channels[0].collect(), Ok(0..2));
    assert_eq!(channels[0].outcome(task(0)), Outcome::Reply { len: 1, service_ns: 40 });
    assert_eq!(channels[0].outcome(task(1)), Outcome::Refused);
    for (number, byte) in [b"a", b"b"].into_iter().enumerate() {
        assert_eq!(echo(&worker_ends[1]), byte);
        assert_eq!(channels[1].collect(), Ok(number as u64..number as u64 + 1));
    }
}

#[test]
fn impossible_notice_is_refused() {
    // An offset that starts no slot; an offset beyond the area, at a multiple of the stride of 128 bytes; and two
    // lengths above the limit of 16.
    let notices = [
        Notice { offset: 1, len: 0, class: 0 },
        Notice { offset: u32::MAX - 127, len: 0, class: 0 },
        Notice { offset: 0, len: 17, class: 0 },
        Notice { offset: 0, len: u32::MAX, class: 0 },
    ];
    for notice in notices {
        let (_region, mut channel, worker_end) = joined(4, 16);
        assert!(channel.sender_mut().send(notice));
        assert_eq!(worker_end.take().unwrap_err(), worker_end::BadNotice, "{notice:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }) })]

    /// For any values that a worker writes, its dispatcher neither panics nor loses count.
    // promise: agent.2
    #[test]
    fn a_dispatcher_survives_any_worker(
        steps in proptest::collection::vec((0..8_u8, any::<u64>(), any::<u16>()), 1..80),
    ) {
        let (region, mut channel, _worker_end) = joined(4, 16);
        let words = region.words(0);
        let area = region.area(0);
        let mut reply = [0; 16];
        // Tasks given; tasks completed or lost; lost ones alone.
        let (mut given, mut done, mut lost) = (0_u64, 0_u64, 0_u64);
        for (step, value, index) in steps {
            // Steps 1, 6 and 7 write nearly valid values, which pass the first checks. Steps 2 to 5 write random ones.
            match step {
                0 => given += u64::from(channel.send(ids(0), &[1, 2, 3])),
                1 => words.credit[credit::DONE].store(done.wrapping_add(value % 3), Relaxed),
                2 => words.credit[usize::from(index) % credit::WORDS].store(value, Relaxed),
                6 => words.credit[credit::LISTED].store(done.wrapping_add(value % 3), Relaxed),
                7 => words.completed[usize::from(index) % 4].store(value % 5, Relaxed),
                3 => area[usize::from(index) % area.len()].store(value, Relaxed),
                4 => words.claim[claim::CLAIM].store(value | claim::ATTACHED, Relaxed),
                _ => words.control[usize::from(index) % control::WORDS].store(value, Relaxed),
            }
            match channel.collect() {
                Ok(numbers) => {
                    done += numbers.end - numbers.start;
                    for count in numbers {
                        let task = channel.sender().completed(count);
                        if let Outcome::Reply { len, .. } = channel.outcome(task) {
                            channel.reply(task, &mut reply[..len]);
                        }
                    }
                }
                Err(_) => {
                    let outstanding = channel.sender_mut().revoke();
                    lost += outstanding.end - outstanding.start;
                    done += outstanding.end - outstanding.start;
                    let claim = channel.sender().claim();
                    channel.sender_mut().grant(claim);
                }
            }
            channel.sender_mut().worked_ns();
            prop_assert_eq!(given, done + channel.sender().outstanding() as u64);
            prop_assert!(lost <= given);
        }
    }

    /// For any contents of the slots, a worker stays within its region.
    // promise: agent.2
    #[test]
    fn a_worker_survives_any_dispatcher(
        words in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<bool>()), 1..20),
        in_any_order in any::<bool>(),
    ) {
        let (region, _channel, mut worker_end) = joined(4, 16);
        let mut taken = Vec::new();
        if in_any_order {
            worker_end.complete_in_any_order();
        }
        let shared: ChannelWords<_> = region.words(0);
        for (first, second, has_valid_tag) in words {
            // The notice of the next task: a tag, which is the task's number plus 1 if valid, and random other words.
            let index = 2 * worker_end.receiver().slot(worker_end.receiver().next());
            let tag = if has_valid_tag { worker_end.receiver().next() + 1 } else { first };
            shared.slots[index + 1].store(second, Relaxed);
            AtomicU64::store(&shared.slots[index], first << 32 | tag & 0xFFFF_FFFF, Relaxed);
            if let Ok(Some(task)) = worker_end.take() {
                prop_assert!(worker_end.payload(&task).len() <= 16);
                taken.push(task);
                // With `in_any_order`, up to two tasks stay unfinished.
                if !in_any_order || taken.len() > 2 {
                    worker_end.end_without_reply(taken.remove(0), 1);
                }
            }
        }
    }
}
