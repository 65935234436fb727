//! A flow's state towards its requester: what the requester sent, was acknowledged, and is owed.

use super::acks::Acks;
use super::allowance::Allowance;
use super::hold::Hold;
use super::missing::Missing;
use super::one_way::Silence;
use super::replay::Replay;
use crate::advice::Retries;

/// How far the requester has sent, as PSNs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    next: u64,
    latest: u64,
}

impl Sent {
    /// For a requester that has sent nothing and sends `psn` next.
    pub(crate) fn from(psn: u64) -> Self {
        Sent { next: psn, latest: psn }
    }

    /// The PSN behind the last packet that came.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Notes that the last packet that came ends before `next`.
    #[inline]
    pub(crate) fn set_next(&mut self, next: u64) {
        self.next = next;
    }

    /// The PSN behind the highest packet that came, stored ones excepted.
    pub(crate) fn latest(&self) -> u64 {
        self.latest
    }

    /// Raises [`Sent::latest`] to the last packet that came.
    #[inline]
    pub(crate) fn note_last(&mut self) {
        self.latest = self.latest.max(self.next);
    }

    /// Notes that all packets that came, stored ones excepted, end before `latest`.
    pub(crate) fn set_latest(&mut self, latest: u64) {
        self.latest = latest;
    }

    /// Notes that the stored packets, up to `end`, are discarded.
    pub(crate) fn note_discarded(&mut self, end: u64) {
        self.latest = self.latest.max(end);
    }
}

/// The side of a flow towards its requester.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) sent: Sent,
    pub(crate) acks: Acks,
    pub(crate) allowance: Allowance,
    pub(crate) missing: Missing,
    pub(crate) hold: Hold,
    pub(crate) silence: Silence,
    /// Responses that were requested again.
    pub(crate) replay: Option<Replay>,
    pub(crate) retries: Retries,
}

impl Requester {
    /// For a flow that begins at `psn`.
    pub(crate) fn new(psn: u64) -> Self {
        Requester {
            sent: Sent::from(psn),
            acks: Acks::new(psn),
            allowance: Allowance::new(),
            missing: Missing::default(),
            hold: Hold::default(),
            silence: Silence::default(),
            replay: None,
            retries: Retries::default(),
        }
    }

    /// The same requester, to which nothing is owed.
    pub(crate) fn afresh(&self) -> Self {
        let begins_at = self.acks.begins_at();
        Requester {
            sent: self.sent,
            acks: self.acks.afresh(),
            retries: self.retries,
            ..Requester::new(begins_at)
        }
    }
}
