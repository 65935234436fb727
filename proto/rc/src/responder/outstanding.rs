//! READs and atomics that a responder has to answer.

use longhaul_units::{Msn, RKey};
use std::collections::VecDeque;

/// A READ or an atomic to answer. PSNs are unwrapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// PSN of the first response.
    pub(super) first: u64,
    /// PSN behind the last response.
    pub(super) end: u64,
    /// PSN of the next response to send.
    pub(super) cursor: u64,
    /// MSN of its responses.
    pub(super) msn: Msn,
    pub(super) is_duplicate: bool,
    pub(super) answer: Answer,
}

/// Content of the responses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// Memory, read when each response is sent.
    Read { address: u64, rkey: RKey, len: u32 },
    /// The value that the atomic found.
    Atomic { original: u64 },
}

impl Request {
    fn original(&self) -> Option<u64> {
        match self.answer {
            Answer::Read { .. } => None,
            Answer::Atomic { original } => Some(original),
        }
    }
}

/// The requests to answer, in PSN order, and the results of recent atomics.
///
/// New requests are bounded by `max_dest_rd_atomic`, here `max`; with duplicates there are at most
/// twice as many. A duplicate atomic is answered with the result of the original (IBTA, volume 1,
/// section 9.4.5).
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    requests: VecDeque<Request>,
    /// Requests that are no duplicates.
    new: u32,
    /// Results of the latest atomics, by PSN.
    results: VecDeque<(u64, u64)>,
}

impl Outstanding {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    #[inline]
    pub(super) fn oldest(&self) -> Option<&Request> {
        self.requests.front()
    }

    /// True when the peer has as many new requests outstanding as it may.
    #[inline]
    pub(super) fn is_full(&self, max: u32) -> bool {
        self.new >= max
    }

    /// Queues a request that arrived in sequence. If duplicates take all the space, the oldest
    /// request is dropped; its requester's timer retransmits it.
    pub(super) fn push(&mut self, request: Request, max: u32) {
        if self.requests.len() >= space(max)
            && let Some(oldest) = self.requests.pop_front()
        {
            self.new -= u32::from(!oldest.is_duplicate);
        }
        self.new += 1;
        self.requests.push_back(request);
    }

    /// Remembers the result of the atomic at `psn`.
    pub(super) fn remember(&mut self, psn: u64, original: u64, max: u32) {
        if self.results.len() >= max as usize {
            self.results.pop_front();
        }
        self.results.push_back((psn, original));
    }

    /// The result of the atomic at `psn`, if it is remembered.
    pub(super) fn result(&self, psn: u64) -> Option<u64> {
        self.results.iter().find(|(at, _)| *at == psn).map(|(_, original)| *original)
    }

    /// Queues a duplicate in PSN order. Returns `false` if it contradicts a queued request, or if
    /// there is no space.
    pub(super) fn insert_duplicate(&mut self, duplicate: Request, max: u32) -> bool {
        let has_space = self.requests.len() < space(max);
        let at = self.requests.partition_point(|r| r.end <= duplicate.first);
        match self.requests.get_mut(at) {
            Some(queued) if queued.first <= duplicate.first => {
                if queued.end != duplicate.end || queued.original() != duplicate.original() {
                    return false;
                }
                if duplicate.first < queued.cursor {
                    self.new -= u32::from(!queued.is_duplicate);
                    *queued = duplicate;
                }
                true
            }
            Some(queued) if queued.first < duplicate.end => false,
            _ if has_space => {
                self.requests.insert(at, duplicate);
                true
            }
            _ => false,
        }
    }

    /// `count` responses to the oldest request were sent. Returns `true` if they were its last.
    #[inline]
    pub(super) fn sent(&mut self, count: u64) -> bool {
        let Some(oldest) = self.requests.front_mut() else { return false };
        oldest.cursor += count;
        let is_answered = oldest.cursor == oldest.end;
        if is_answered {
            self.new -= u32::from(!oldest.is_duplicate);
            self.requests.pop_front();
        }
        is_answered
    }

    /// Drops all requests: they cannot be answered.
    pub(super) fn clear(&mut self) {
        self.requests.clear();
    }
}

/// Requests that can be queued, duplicates included.
fn space(max: u32) -> usize {
    2 * max as usize
}
