//! The recent PSNs of a requester and the ends of its messages: enough to attribute ACKs.
//!
//! A trace keeps PSNs but no frames, so that thousands of flows between two hosts can be followed
//! at once.

use longhaul_units::{Duration, Instant, Msn, Psn};
use std::collections::VecDeque;

/// Most runs of equal messages, 16 bytes each; one suffices while all messages have one length.
const RUNS_MAX: usize = 1024;
/// Most PSNs in a run, well below half of the range of its 32-bit numbers.
const RUN_MAX: u32 = 1 << 24;
/// Longest time from a request to the last ACK for it.
const ACK_LATE: Duration = Duration::from_ms(1000);
/// Most PSNs that a requester may have outstanding: a PSN further from the latest belongs to
/// another life of its QP.
pub(crate) const OUTSTANDING_MAX: u64 = 1 << 18;
/// A gap of more PSNs than this, with nothing undelivered, means a restarted QP, not loss on a LAN.
pub(crate) const GAP_MAX: u64 = 4096;

/// Largest count compared with an MSN: a wrapped MSN is below this once in 4096 times.
const COUNTED_MAX: u32 = 1 << 12;

/// The requests of one flow, by number.
#[derive(Debug)]
pub(crate) struct Trace {
    /// `known..end` is contiguous, and all its message ends are in `runs`.
    known: u64,
    end: u64,
    /// The lowest and the highest PSN (exclusive) of this life of the flow.
    first: u64,
    latest: u64,
    runs: VecDeque<Run>,
    /// Incremented at each gap: message counts are comparable within an epoch only.
    epoch: u32,
    /// Most PSNs of the last READ, while its path MTU is unknown.
    open_read: u64,
    /// Time at which PSNs below `known` or above `end` were last forgotten.
    forgotten_at: Option<Instant>,
}

/// Consecutive messages of equal length. Sequence numbers are the low 32 bits.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Last PSN of its first message.
    ends_at: u32,
    stride: u32,
    count: u32,
    /// Messages before the first one of the run, since the epoch began.
    before: u32,
}

/// Properties of a request packet that a trace needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requested {
    pub(crate) seq: u64,
    /// PSNs that it takes; `None` for a READ whose path MTU is unknown.
    pub(crate) span: Option<u64>,
    /// PSNs that it takes at the smallest path MTU.
    pub(crate) span_max: u64,
    /// It completes a message.
    pub(crate) ends: bool,
}

/// Whether an acknowledged PSN can belong to a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    /// The flow has not used it.
    No,
    /// The flow may have used it.
    Maybe,
    /// The flow has used it; the messages completed up to it.
    Yes(Count),
}

/// Messages that a requester has completed up to a PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Count {
    epoch: u32,
    messages: u32,
}

impl Count {
    /// Messages from `before` to this count; `None` if the two are not comparable.
    pub(crate) fn since(self, before: Count) -> Option<u32> {
        (self.epoch == before.epoch).then(|| self.messages.wrapping_sub(before.messages))
    }

    /// True if this count exceeds `msn`. A trace may have missed messages, but never counts too
    /// many. `false` if the 24-bit MSN may have wrapped.
    pub(crate) fn exceeds(self, msn: Msn) -> bool {
        self.messages <= COUNTED_MAX && self.messages > msn.get()
    }
}

impl Trace {
    /// For a flow whose first packet is `start`.
    pub(crate) fn new(start: u64) -> Self {
        Trace {
            known: start,
            end: start,
            first: start,
            latest: start,
            runs: VecDeque::new(),
            epoch: 0,
            open_read: 0,
            forgotten_at: None,
        }
    }

    /// The PSN behind the last request in order.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The lowest PSN of this life.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// True if the requester may send `seq` next: it continues, goes back, or the LAN lost packets
    /// before `seq`.
    pub(crate) fn goes_on_with(&self, seq: u64) -> bool {
        (self.first..=self.latest + GAP_MAX).contains(&seq)
    }

    /// Unwraps a PSN near the end of the trace.
    pub(crate) fn sequence_of(&self, psn: Psn) -> u64 {
        psn.unwrap_near(self.end).unwrap_or(0)
    }

    /// True if the requester has sent `seq`, or may send it next.
    pub(crate) fn may_hold(&self, seq: u64) -> bool {
        (self.first..=self.latest).contains(&seq)
    }

    /// True if the requester may have sent `seq` before its first packet here.
    pub(crate) fn begins_behind(&self, seq: u64) -> bool {
        seq < self.first && seq + OUTSTANDING_MAX > self.first
    }

    /// The lowest and the highest PSN (exclusive) that an ACK for this flow may carry:
    /// [`Trace::fit`] is `No` for all others.
    pub(crate) fn range(&self) -> (Psn, Psn) {
        let lowest = if self.forgotten_at.is_some() { self.forgotten_from() } else { self.known };
        (Psn::from_sequence(lowest), Psn::from_sequence(self.latest.max(self.end)))
    }

    fn forgotten_from(&self) -> u64 {
        self.first.max(self.known.saturating_sub(OUTSTANDING_MAX))
    }

    /// Notes that the requester has sent everything before `to`, which late ACKs may name.
    pub(crate) fn note_sent_before(&mut self, now: Instant, to: u64) {
        if (self.latest..self.latest + OUTSTANDING_MAX).contains(&to) {
            self.latest = to;
            self.forgotten_at = Some(now);
        }
    }

    /// Processes a request.
    pub(crate) fn note(&mut self, now: Instant, request: Requested) {
        let Requested { seq, span, span_max, ends } = request;
        let next = seq + span.unwrap_or(1);
        // This request shows where the READ before it ended.
        let closes_read = seq > self.end && seq - self.end < self.open_read;
        match seq {
            _ if seq == self.end || closes_read => {}
            _ if (self.known..self.end).contains(&seq) => return,
            _ => self.forget(now, seq),
        }
        self.end = next;
        self.latest = self.latest.max(next);
        self.shorten();
        self.open_read = if span.is_none() { span_max } else { 0 };
        if ends {
            self.count(now, next - 1);
        }
    }

    /// Restarts at `seq`, behind a gap or before all known PSNs.
    fn forget(&mut self, now: Instant, seq: u64) {
        if seq.abs_diff(self.latest) < OUTSTANDING_MAX {
            self.forgotten_at = Some(now);
            self.first = self.first.min(seq);
            self.epoch += 1;
        } else {
            *self = Trace::new(seq);
        }
        (self.known, self.end) = (seq, seq);
        self.runs.clear();
    }

    /// Forgets PSNs that no ACK carries any more, so that the range of the trace stays distinctive.
    fn shorten(&mut self) {
        self.known = self.known.max(self.end.saturating_sub(OUTSTANDING_MAX));
        let known = self.known as u32;
        while self.runs.get(1).is_some_and(|run| run.ends_at.wrapping_sub(known) as i32 <= 0) {
            self.runs.pop_front();
        }
    }

    /// Counts a message that ends with `last`.
    fn count(&mut self, now: Instant, last: u64) {
        let last = last as u32;
        let before = self.runs.back().map_or(0, |run| run.before.wrapping_add(run.count));
        if let Some(run) = self.runs.back_mut() {
            let stride =
                last.wrapping_sub(run.ends_at.wrapping_add(run.stride.wrapping_mul(run.count - 1)));
            let is_short = last.wrapping_sub(run.ends_at) < RUN_MAX;
            if is_short && (run.count == 1 || run.stride == stride) {
                (run.stride, run.count) = (stride, run.count + 1);
                return;
            }
        }
        if self.runs.len() == RUNS_MAX
            && let Some(run) = self.runs.pop_front()
        {
            let ended =
                run.ends_at.wrapping_add(run.stride.wrapping_mul(run.count - 1)).wrapping_add(1);
            self.known += u64::from(ended.wrapping_sub(self.known as u32));
            self.forgotten_at = Some(now);
        }
        self.runs.push_back(Run { ends_at: last, stride: 0, count: 1, before });
    }

    /// Whether an ACK of `psn` can be for this flow.
    pub(crate) fn fit(&self, now: Instant, psn: Psn) -> Fit {
        let Some(seq) = psn.unwrap_near(self.end) else { return Fit::No };
        if (self.known..self.end).contains(&seq) {
            return Fit::Yes(Count { epoch: self.epoch, messages: self.messages_to(seq) });
        }
        let was_used = (self.forgotten_from()..self.latest).contains(&seq);
        match self.forgotten_at {
            Some(at) if was_used && now.since(at) < ACK_LATE => Fit::Maybe,
            _ => Fit::No,
        }
    }

    /// Messages that end at or before `seq`, which must be known.
    fn messages_to(&self, seq: u64) -> u32 {
        let distance = |run: &Run| (seq as u32).wrapping_sub(run.ends_at) as i32;
        let at = self.runs.partition_point(|run| distance(run) >= 0);
        match at.checked_sub(1).and_then(|at| self.runs.get(at)) {
            Some(run) => {
                let more = (distance(run) as u32).checked_div(run.stride).unwrap_or(0);
                run.before.wrapping_add((more + 1).min(run.count))
            }
            None => self.runs.front().map_or(0, |run| run.before),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 1 << 32;

    fn request(seq: u64, ends: bool) -> Requested {
        Requested { seq, span: Some(1), span_max: 1, ends }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    /// Notes messages of these lengths in packets, one after another. Returns the trace and the end
    /// of each.
    fn traced(lengths: &[u64]) -> (Trace, Vec<u64>) {
        let mut trace = Trace::new(START);
        let (mut seq, mut ends) = (START, Vec::new());
        for &length in lengths {
            for packet in 0..length {
                trace.note(at(0), request(seq, packet + 1 == length));
                seq += 1;
            }
            ends.push(seq - 1);
        }
        (trace, ends)
    }

    fn count(trace: &Trace, seq: u64) -> Option<u32> {
        match trace.fit(at(0), Psn::from_sequence(seq)) {
            Fit::Yes(count) => Some(count.messages),
            _ => None,
        }
    }

    proptest! {
        #[test]
        fn counts_as_a_list_of_all_ends_does(lengths in prop::collection::vec(1..6_u64, 1..300)) {
            let (trace, ends) = traced(&lengths);
            for seq in START..=*ends.last().unwrap() {
                let expected = ends.iter().filter(|&&end| end <= seq).count() as u32;
                prop_assert_eq!(count(&trace, seq), Some(expected));
            }
        }
    }

    #[test]
    fn equal_messages_take_one_run() {
        let (trace, _) = traced(&[64; 1000]);
        assert_eq!(trace.runs.len(), 1);
    }

    #[test]
    fn what_is_forgotten_may_be_its_own_for_a_while() {
        let (mut trace, ends) = traced(&[1; 10]);
        trace.note(at(5), request(START + 50, true));
        let late = Psn::from_sequence(ends[3]);
        assert_eq!(trace.fit(at(900), late), Fit::Maybe);
        assert_eq!(trace.fit(at(1100), late), Fit::No);
        assert!(matches!(trace.fit(at(900), Psn::from_sequence(START + 50)), Fit::Yes(_)));
        assert_eq!(trace.fit(at(900), Psn::from_sequence(START - 1)), Fit::No);
    }

    #[test]
    fn what_was_sent_before_it_was_followed_may_be_its_own_for_a_while() {
        let mut trace = Trace::new(START);
        trace.note_sent_before(at(5), START + 7);
        assert_eq!(trace.fit(at(900), Psn::from_sequence(START + 6)), Fit::Maybe);
        assert_eq!(trace.fit(at(900), Psn::from_sequence(START + 7)), Fit::No);
        assert_eq!(trace.fit(at(1100), Psn::from_sequence(START + 6)), Fit::No);
        assert!(trace.may_hold(START + 7) && !trace.may_hold(START + 8));
        trace.note_sent_before(at(5), START + (1 << 23));
        assert!(!trace.may_hold(START + 8), "another life");
    }

    #[test]
    fn many_runs_forget_the_oldest() {
        let lengths: Vec<u64> = (0..4 * RUNS_MAX as u64).map(|n| 1 + n * n % 7).collect();
        let (trace, ends) = traced(&lengths);
        assert!(trace.runs.len() <= RUNS_MAX);
        assert_eq!(trace.fit(at(0), Psn::from_sequence(ends[0])), Fit::Maybe);
        assert_eq!(count(&trace, *ends.last().unwrap()), Some(lengths.len() as u32));
    }

    #[test]
    fn the_request_behind_a_read_shows_where_it_ended() {
        let mut trace = Trace::new(START);
        trace.note(at(0), Requested { seq: START, span: None, span_max: 8, ends: true });
        trace.note(at(0), request(START + 2, true));
        assert_eq!(count(&trace, START + 2), Some(2));
        let mut gap = Trace::new(START);
        gap.note(at(0), Requested { seq: START, span: None, span_max: 8, ends: true });
        gap.note(at(0), request(START + 9, true));
        assert_eq!(gap.epoch, 1, "no path MTU is as short");
    }

    #[test]
    fn a_long_life_leaves_no_long_trace() {
        let mut trace = Trace::new(START);
        let (mut seq, long) = (START, 1 << 16);
        for _ in 0..1 << 16 {
            seq += long;
            trace.note(
                at(0),
                Requested { seq: seq - long, span: Some(long), span_max: long, ends: true },
            );
        }
        assert!(trace.runs.len() < 4, "{} runs", trace.runs.len());
        assert_eq!(count(&trace, seq - 1), Some(1 << 16));
        assert_eq!(count(&trace, seq - long - 1), Some((1 << 16) - 1));
        assert_eq!(trace.fit(at(0), Psn::from_sequence(seq - (1 << 20))), Fit::No);
    }

    #[test]
    fn another_life_begins_without_a_past() {
        let (mut trace, ends) = traced(&[1; 10]);
        trace.note(at(5), request(START + (1 << 23), true));
        assert_eq!(trace.fit(at(5), Psn::from_sequence(ends[3])), Fit::No);
        assert!(matches!(trace.fit(at(5), Psn::from_sequence(START + (1 << 23))), Fit::Yes(count)
            if count.messages == 1));
    }
}
