//! What became of a message.

use serde::{Deserialize, Serialize};

/// What became of a message of a window. The numbers are those of chunk arrays and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Fate {
    /// It has not arrived, and the sender has not announced whether it was sent.
    Unaccounted = 0,
    /// It arrived with the right length, and nothing has overwritten it.
    Present = 1,
    /// Its sender announced that it was not sent, or there was no sender.
    NeverSent = 2,
    /// Its sender sent it, and it did not arrive.
    Lost = 3,
    /// It arrived after its window was closed.
    TooLate = 4,
    /// The device had no receive work request for it.
    NoReceive = 5,
    /// It arrived, and a message of another window, or one that was too long, overwrote it.
    Overwritten = 6,
    /// It arrived with the wrong length.
    WrongLength = 7,
}

impl Fate {
    /// All fates, by number.
    pub const ALL: [Fate; 8] = [
        Fate::Unaccounted,
        Fate::Present,
        Fate::NeverSent,
        Fate::Lost,
        Fate::TooLate,
        Fate::NoReceive,
        Fate::Overwritten,
        Fate::WrongLength,
    ];

    /// Its name in statistics and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fate::Unaccounted => "unaccounted",
            Fate::Present => "present",
            Fate::NeverSent => "never_sent",
            Fate::Lost => "lost",
            Fate::TooLate => "too_late",
            Fate::NoReceive => "no_receive",
            Fate::Overwritten => "overwritten",
            Fate::WrongLength => "wrong_length",
        }
    }
}

/// Messages by fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates([u64; Fate::ALL.len()]);

impl Fates {
    /// Number of messages with `fate`.
    #[must_use]
    pub fn of(&self, fate: Fate) -> u64 {
        self.0[fate as usize]
    }

    /// Number of messages.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Counts a message.
    #[inline]
    pub fn add(&mut self, fate: Fate) {
        self.0[fate as usize] += 1;
    }

    /// A counted message has another fate.
    #[inline]
    pub(crate) fn change(&mut self, from: Fate, to: Fate) {
        self.0[from as usize] -= 1;
        self.0[to as usize] += 1;
    }

    /// Adds the messages of `other`.
    pub fn merge(&mut self, other: &Fates) {
        for (to, from) in self.0.iter_mut().zip(other.0) {
            *to += from;
        }
    }

    /// Numbers by name, for files.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Fate::ALL.iter().map(|fate| (fate.name(), self.of(*fate)))
    }
}
