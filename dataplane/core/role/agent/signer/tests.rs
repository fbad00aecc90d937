//! Tests of signed messages: sequences grow by one, follow the clock, and are used once. Also acknowledgements of
//! registrations.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::*;
use crate::wire::auth::{KEY_LEN, addresses};
use crate::wire::task::Header;

/// Sequence of the clock at the start: neither at the start of a window nor of a span.
const NOW: u64 = 77 * WINDOW + 5;
/// Index of the leaf with which the worker registers.
const LEAF: usize = 0;

/// Returns a key of equal bytes.
fn key(byte: u8) -> Key {
    Key::new([byte; KEY_LEN])
}

/// Creates a signer of workers 3 and 8, with different keys.
fn signer() -> Signer {
    Signer::new([(3, key(1)), (8, key(2))], || NOW).unwrap()
}

/// Returns the payload of a message with this header, with room for the proof.
fn payload(header: Header) -> Vec<u8> {
    let header = Header { authenticated: true, ..header };
    let mut payload = vec![0; header.len()];
    header.emit(&mut payload);
    payload
}

/// Reads the proof in a payload between the addresses 1 and 2.
fn signed(payload: &[u8]) -> SignedPacket {
    SignedPacket::read(&addresses(1, 2), payload).unwrap()
}

/// Returns the sequence of this worker's next packet.
fn next_sequence(signer: &Signer, worker: u16) -> u64 {
    let mut payload = payload(Header::keep_alive(7, worker, 0, 1));
    signer.of(worker).unwrap().sign(1_u32, 2, &mut payload);
    signed(&payload).sequence
}

// promise: trust.3
#[test]
fn membership_changes_keep_other_sequences() {
    let before = signer();
    let first = next_sequence(&before, 3);
    let after = Signer::following(Some(&before), [(3, key(1)), (9, key(3))], || NOW).unwrap();
    assert!(after.of(8).is_none() && before.of(9).is_none());
    // During the change, old and new signers sign in turn.
    let sequences = [&after, &before, &after].map(|signer| next_sequence(signer, 3));
    assert_eq!(sequences, [first + 1, first + 2, first + 3]);
    assert_eq!(next_sequence(&after, 9), NOW);
    assert!(Signer::following(Some(&after), [], || NOW).is_none());
}

// promise: trust.3
#[test]
fn sequences_start_at_the_clock() {
    let signer = signer();
    assert!([0, 4, 9, u16::MAX].iter().all(|&other| signer.of(other).is_none()));
    for worker in [3, 8] {
        for further in 0..5 {
            let mut payload = payload(Header::keep_alive(7, worker, 0, 1));
            signer.of(worker).unwrap().sign(1_u32, 2, &mut payload);
            let signed = signed(&payload);
            assert_eq!(signed.sequence, NOW + further);
            let matches = [key(1), key(2)].map(|key| key.tag(&signed.blocks) == signed.tag);
            assert_eq!(matches, [worker == 3, worker == 8]);
        }
    }
    assert!(Signer::new([], || NOW).is_none());
}

// promise: trust.3
#[test]
fn stale_sequence_jumps_by_whole_windows() {
    let credential = Credential::new(key(1), NOW);
    credential.follow(NOW + BEHIND_MAX);
    credential.follow(NOW - 1000);
    assert_eq!(
        credential.sequence.load(Relaxed),
        NOW,
        "no jump if not far behind, or after the clock was set back"
    );
    let now = NOW + 3 * BEHIND_MAX + 12_345;
    credential.follow(now);
    let after = credential.sequence.load(Relaxed);
    assert!(after <= now + SPAN && now - after.min(now) < WINDOW, "{after} for {now}");
    // The jump starts at the end of the current span and skips whole windows.
    assert_eq!(after % WINDOW, NOW.next_multiple_of(SPAN) % WINDOW);
}

// promise: trust.3
#[test]
fn each_call_updates_one_worker_in_turn() {
    // The clock is 3 times `BEHIND_MAX`, and both sequences are set to 0, so each is due for a jump.
    let signer = Signer::new([(3, key(1)), (8, key(2))], || 3 * BEHIND_MAX).unwrap();
    let sequences = || [3, 8].map(|id| signer.of(id).unwrap().sequence.load(Relaxed));
    [3, 8].iter().for_each(|&id| signer.of(id).unwrap().sequence.store(0, Relaxed));
    signer.follow();
    assert!(sequences()[0] > BEHIND_MAX && sequences()[1] == 0);
    signer.follow();
    assert!(sequences()[1] > BEHIND_MAX);
}

// promise: trust.3
#[test]
fn threads_never_reuse_a_sequence() {
    let (signer, used) = (Arc::new(signer()), Arc::new(Mutex::new(BTreeSet::new())));
    let threads = (0..4).map(|_| {
        let (signer, used) = (signer.clone(), used.clone());
        std::thread::spawn(move || {
            let mut own = Vec::new();
            for _ in 0..1000 {
                let mut payload = payload(Header::keep_alive(7, 3, 0, 1));
                signer.of(3).unwrap().sign(1_u32, 2, &mut payload);
                own.push(signed(&payload).sequence);
            }
            let mut used = used.lock().unwrap();
            assert!(own.into_iter().all(|sequence| used.insert(sequence)));
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(used.lock().unwrap().len(), 4000);
}

// promise: trust.3
#[test]
fn only_the_last_registration_is_acknowledged() {
    let credential = Credential::new(key(1), NOW);
    // Signs a registration of this number and returns its sequence.
    let register = |number| {
        let mut payload = payload(Header::worker_id(7, 3, 0, number));
        credential.sign_registration((LEAF, number), 1_u32, 2, &mut payload);
        signed(&payload).sequence
    };
    // Returns the leaf's acknowledgement of the registration with this sequence, signed with this key.
    let acknowledgement = |key: &Key, sequence| {
        let mut payload = payload(Header::worker_id(7, 3, 0, 1).acknowledged_by(9, 100));
        key.sign(&addresses(1, 2), &mut payload, sequence);
        signed(&payload)
    };
    let check = |signed: SignedPacket| credential.acknowledges(LEAF, Some(&signed));
    assert_eq!(check(acknowledgement(&key(1), 0)), Err(DropReason::AuthReplay), "none is open");
    // The second registration replaces the first.
    let (first, second) = (register(1), register(2));
    assert_eq!(check(acknowledgement(&key(1), first)), Err(DropReason::AuthReplay));
    assert_eq!(check(acknowledgement(&key(2), second)), Err(DropReason::AuthTag));
    assert_eq!(credential.acknowledges(LEAF, None::<&SignedPacket>), Err(DropReason::AuthMissing));
    assert_eq!(check(acknowledgement(&key(1), second)), Ok(()));
    // A repetition replaces nothing: the answer to an earlier message may arrive after it.
    let repetition = register(2);
    for sequence in [second, repetition] {
        assert_eq!(check(acknowledgement(&key(1), sequence)), Ok(()));
    }
    for sequence in [first, repetition + 1] {
        assert_eq!(check(acknowledgement(&key(1), sequence)), Err(DropReason::AuthReplay));
    }
}

// promise: trust.3
#[test]
fn debug_output_hides_keys() {
    let shown = format!("{:?} {:?}", signer(), signer().of(3));
    assert!(shown.contains("[3, 8]") && !shown.to_lowercase().contains("key"), "{shown}");
}
