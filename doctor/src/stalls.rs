//! Silences of a flow: length, number, cause, and the packets outstanding.

use crate::histogram::Histogram;

/// Maximum distinct levels per cause.
const LEVELS_MAX: usize = 48;
/// Threshold while no round trip has been measured.
const UNKNOWN_RTT_THRESHOLD_NS: u64 = 250_000;
/// Minimum threshold: the resolution of timestamps and interrupts.
const THRESHOLD_MIN_NS: u64 = 2_000;

/// A requester's outstanding messages and packets, as seen at the capture point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Level {
    pub messages: u32,
    /// PSNs from the oldest unacknowledged one to the newest sent.
    pub packets: u32,
    /// READs and atomics.
    pub reads: u32,
    /// The newest packet does not end its message.
    pub mid_message: bool,
}

/// Event that ended a silence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Cause {
    /// New requests after acknowledgements or responses, with something still outstanding.
    Waited,
    /// New requests after everything had been acknowledged.
    Drained,
    /// No acknowledgement or NAK preceded it in the capture.
    Unprompted,
    /// A retransmission after a sequence NAK.
    SequenceNak,
    /// A retransmission after an RNR NAK.
    RnrNak,
    /// A retransmitted READ or atomic after a later response.
    ImpliedNak,
    /// A retransmission without a preceding NAK.
    Timeout,
}

impl Cause {
    pub const ALL: [Cause; 7] = [
        Cause::Waited,
        Cause::Drained,
        Cause::Unprompted,
        Cause::SequenceNak,
        Cause::RnrNak,
        Cause::ImpliedNak,
        Cause::Timeout,
    ];
}

/// All silences at one level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtLevel {
    pub level: Level,
    pub count: u64,
    pub total_ns: u64,
    /// Minimum time from the last, and from the first, acknowledgement to the packet that ended the
    /// silence.
    pub near_ns: Option<(u64, u64)>,
}

/// All silences of one cause.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub count: u64,
    pub total_ns: u64,
    pub lengths: Histogram,
    pub levels: Vec<AtLevel>,
    /// Silences with the credits of the last acknowledgement exhausted.
    pub out_of_credits: u64,
    /// Part of the time after everything had been acknowledged.
    pub drained_ns: u64,
    /// The longest silence: number of the frame that ended it, and its end.
    pub longest_frame: u64,
    pub longest_end_ns: u64,
}

/// One silence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    pub cause: Cause,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Number of the frame that ended it.
    pub frame: u64,
    pub level: Level,
    /// First and last acknowledgement in it.
    pub progress_ns: Option<(u64, u64)>,
    pub drained_at_ns: Option<u64>,
    pub out_of_credits: bool,
    /// Ended by a packet of the requester, not by a response.
    pub ended_by_request: bool,
}

/// The silences of one flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stalls {
    tallies: [Option<Box<Tally>>; Cause::ALL.len()],
    /// Messages sent between two silences.
    pub bursts: Histogram,
}

/// Returns the threshold of a silence: a quarter of the shortest round trip so far.
pub(crate) fn threshold_ns(rtt_min_ns: Option<u64>) -> u64 {
    rtt_min_ns.map_or(UNKNOWN_RTT_THRESHOLD_NS, |rtt| (rtt / 4).max(THRESHOLD_MIN_NS))
}

impl Stalls {
    pub fn add(&mut self, silence: &Silence) {
        let tally = self.tallies[silence.cause as usize].get_or_insert_default();
        let length = silence.end_ns.saturating_sub(silence.start_ns);
        if length > tally.lengths.max() {
            (tally.longest_frame, tally.longest_end_ns) = (silence.frame, silence.end_ns);
        }
        tally.count += 1;
        tally.total_ns += length;
        tally.lengths.add(length);
        tally.out_of_credits += u64::from(silence.out_of_credits);
        tally.drained_ns += silence.drained_at_ns.map_or(0, |at| silence.end_ns.saturating_sub(at));
        let near = silence.progress_ns.filter(|_| silence.ended_by_request).map(|(first, last)| {
            (silence.end_ns.saturating_sub(last), silence.end_ns.saturating_sub(first))
        });
        tally.at_level(silence.level, length, near);
    }

    pub fn of(&self, cause: Cause) -> Option<&Tally> {
        self.tallies[cause as usize].as_deref()
    }
}

impl Tally {
    fn at_level(&mut self, level: Level, length: u64, near: Option<(u64, u64)>) {
        let found = self.levels.iter().position(|at| at.level == level);
        let slot = match found {
            Some(slot) => slot,
            None if self.levels.len() < LEVELS_MAX => {
                self.levels.push(AtLevel { level, count: 0, total_ns: 0, near_ns: None });
                self.levels.len() - 1
            }
            // Count it at the nearest level: an approximate level suffices.
            None => self.nearest(level),
        };
        let at = &mut self.levels[slot];
        at.count += 1;
        at.total_ns += length;
        at.near_ns = match (at.near_ns, near) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.min(d))),
            (one, other) => one.or(other),
        };
    }

    fn nearest(&self, level: Level) -> usize {
        let distance = |at: &AtLevel| {
            (at.level.reads.abs_diff(level.reads), at.level.packets.abs_diff(level.packets))
        };
        (0..self.levels.len()).min_by_key(|&i| distance(&self.levels[i])).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence(messages: u32, from: u64, to: u64) -> Silence {
        Silence {
            cause: Cause::Waited,
            start_ns: from,
            end_ns: to,
            frame: 1,
            level: Level { messages, packets: messages, reads: 0, mid_message: false },
            progress_ns: Some((to - 20, to - 10)),
            drained_at_ns: None,
            out_of_credits: false,
            ended_by_request: true,
        }
    }

    #[test]
    fn silences_are_summed_by_cause_and_filling() {
        let mut stalls = Stalls::default();
        stalls.add(&silence(128, 0, 1000));
        stalls.add(&silence(128, 2000, 4000));
        stalls.add(&silence(7, 5000, 5100));
        let tally = stalls.of(Cause::Waited).unwrap();
        assert_eq!((tally.count, tally.total_ns, tally.longest_end_ns), (3, 3100, 4000));
        assert_eq!((tally.levels[0].count, tally.levels[0].total_ns), (2, 3000));
        assert_eq!(tally.levels[0].near_ns, Some((10, 20)));
        assert!(stalls.of(Cause::Timeout).is_none());
    }

    #[test]
    fn fillings_without_end_stay_bounded() {
        let mut stalls = Stalls::default();
        (0..10_000).for_each(|n| stalls.add(&silence(n, 0, 100)));
        let tally = stalls.of(Cause::Waited).unwrap();
        assert_eq!(tally.levels.len(), LEVELS_MAX);
        assert_eq!(tally.levels.iter().map(|l| l.count).sum::<u64>(), 10_000);
    }

    #[test]
    fn the_threshold_follows_the_round_trip() {
        assert_eq!(threshold_ns(Some(1_000_000)), 250_000);
        assert_eq!(threshold_ns(Some(100)), THRESHOLD_MIN_NS);
        assert_eq!(threshold_ns(None), UNKNOWN_RTT_THRESHOLD_NS);
    }
}
