//! Responses that a requester asked for again after they had passed.

use longhaul_units::Instant;

/// READs or atomics that were requested again. Until their responses have come again, an ACK of a
/// PSN behind them would tell the requester that they are lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replay {
    first: u64,
    last: u64,
    at: Instant,
}

impl Replay {
    /// Adds PSNs `first` to `last`, requested at `at`, to those of `before`.
    pub(crate) fn new(before: Option<Replay>, at: Instant, first: u64, last: u64) -> Self {
        let (earliest, latest) = before.map_or((first, last), |it| (it.first, it.last));
        Replay { first: earliest.min(first), last: latest.max(last), at }
    }

    /// When a response was last requested.
    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    pub(crate) fn contains(&self, seq: u64) -> bool {
        (self.first..=self.last).contains(&seq)
    }

    pub(crate) fn ends_before(&self, seq: u64) -> bool {
        self.last < seq
    }

    pub(crate) fn ends_with(&self, seq: u64) -> bool {
        self.last == seq
    }
}
