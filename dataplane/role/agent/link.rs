//! What a worker can be given, and how: copied for another process, or handed over to a thread of this one.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use crate::io::Token;
use crate::ring::{Channel, Fault, Producer, Sender, TaskIds};
use crate::state::region::Slice;

/// What a worker can be given.
pub trait Work: Sized {
    /// The task as it goes to a worker that has it whole.
    type Parcel: Token;
    /// What goes with the task.
    fn ids(&self) -> TaskIds;
    /// Its bytes.
    fn payload(&self) -> &[u8];
    /// Becomes what is handed over, and a note that goes with it.
    fn pack(self) -> (Self::Parcel, u32);
    /// What [`Work::pack`] made, whole again; none when its bytes are no task any more.
    fn unpack(parcel: Self::Parcel, note: u32) -> Option<Self>;
}

/// How a worker gets its tasks.
pub enum WorkerLink<T: Work> {
    /// Their bytes are copied, and those of the answer back: the tasks stay here.
    Copied {
        /// To the worker, a process or a thread.
        channel: Channel,
        /// The tasks that it has, by slot.
        held: Box<[Option<T>]>,
    },
    /// They are handed over to a thread of this process, which ends them itself.
    Handed(Producer<T::Parcel>),
}

impl<T: Work> fmt::Debug for WorkerLink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if matches!(self, Self::Copied { .. }) { "Copied" } else { "Handed" };
        f.debug_tuple(name).field(self.channel()).finish()
    }
}

impl<T: Work> From<Channel> for WorkerLink<T> {
    fn from(channel: Channel) -> Self {
        let held = (0..channel.sender().slots()).map(|_| None).collect();
        Self::Copied { channel, held }
    }
}

impl<T: Work> From<Producer<T::Parcel>> for WorkerLink<T> {
    fn from(producer: Producer<T::Parcel>) -> Self {
        Self::Handed(producer)
    }
}

impl<T: Work> WorkerLink<T> {
    /// The channel, to be looked at.
    #[inline]
    pub fn channel(&self) -> &Channel {
        match self {
            Self::Copied { channel, .. } => channel,
            Self::Handed(producer) => producer.channel(),
        }
    }

    /// Its protocol's end.
    #[inline]
    pub fn sender(&self) -> &Sender<Slice<AtomicU64>> {
        self.channel().sender()
    }

    /// Gives a task.
    ///
    /// # Errors
    /// The task, when it can't be given.
    #[inline]
    pub fn give(&mut self, task: T) -> Result<(), T> {
        match self {
            Self::Copied { channel, held } => {
                let slot = channel.sender().slot(channel.sender().next());
                if !channel.give(task.ids(), task.payload()) {
                    return Err(task);
                }
                held[slot] = Some(task);
                Ok(())
            }
            Self::Handed(producer) if producer.has_room() => {
                let (parcel, note) = task.pack();
                let given = producer.give(parcel, note).is_ok();
                debug_assert!(given, "there was room");
                Ok(())
            }
            Self::Handed(_) => Err(task),
        }
    }

    /// Takes new credits.
    ///
    /// # Errors
    /// As [`Channel::collect`].
    #[inline]
    pub fn collect(&mut self) -> Result<Range<u64>, Fault> {
        match self {
            Self::Copied { channel, .. } => channel.collect(),
            Self::Handed(producer) => producer.collect(),
        }
    }

    /// Lets the worker of this claim begin; false when it has gone already.
    pub fn grant(&mut self, claim: u64) -> bool {
        match self {
            Self::Copied { channel, .. } => channel.sender_mut().grant(claim),
            Self::Handed(producer) => producer.grant(),
        }
    }

    /// Takes the grant away, and gives `back` each task that nobody will do now.
    pub fn revoke(&mut self, mut back: impl FnMut(T, &Channel, u64)) -> u32 {
        match self {
            Self::Copied { channel, held } => {
                let lost = channel.sender_mut().revoke();
                channel.wake();
                for number in lost.clone() {
                    if let Some(task) = held[channel.sender().slot(number)].take() {
                        back(task, channel, number);
                    }
                }
                (lost.end - lost.start) as u32
            }
            Self::Handed(producer) => {
                let mut lost = 0;
                while let Some((parcel, note)) = producer.take_back() {
                    lost += 1;
                    // Nobody has changed its bytes since it was read.
                    if let Some(task) = T::unpack(parcel, note) {
                        back(task, producer.channel(), 0);
                    }
                }
                lost
            }
        }
    }
}
