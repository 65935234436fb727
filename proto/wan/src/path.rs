//! One way to the far box, as one session sees it.

use crate::flight::{Fate, Flight};
use crate::mtu::{LOST_IN_A_ROW, PathMtu};
use crate::pace::Pace;
use crate::parity_out::ParityOut;
use crate::shared::Gate;
use crate::{Config, PathConfig};
use longhaul_cc::wire_bytes;
use longhaul_fec::Body;
use longhaul_node::Deadline;
use longhaul_units::{Duration, Instant};
use std::collections::VecDeque;

/// Transmissions at the end of what is in flight that are repeated to make the far box answer.
pub(crate) const TAIL: usize = 8;
/// Tail probes in a row that double the wait for the next.
const BACKOFF_MAX: u32 = 4;
/// Least time between two PINGs of a path that is out.
pub(crate) const PING_AGAIN_MIN: Duration = Duration::from_ms(10);
/// The same while it is not known how long the path is.
pub(crate) const PING_AGAIN_UNKNOWN: Duration = Duration::from_ms(100);
/// A deadline that is met so much later than it was due says that this box was held up, and nothing of the path.
const HELD_UP: Duration = Duration::from_ms(2);
/// Ethernet with a tag, in front of an IP packet.
const ETHERNET: usize = 18;
/// PINGs that may be unanswered: they follow each other within a quarter of a round trip at most.
const ASKED_MAX: usize = 8;

/// The most bytes on the wire of an IP packet of this length.
fn on_wire(len: u16) -> u64 {
    wire_bytes(usize::from(len) + ETHERNET)
}

/// A PING that is not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) nonce: u64,
    pub(crate) at: Instant,
}

/// See the module.
pub(crate) struct WayOut {
    pub(crate) flight: Flight,
    pub(crate) parity: ParityOut,
    /// Where the rate adapts.
    pub(crate) pace: Option<Pace>,
    pub(crate) mtu: PathMtu,
    /// Frames and parts that were split for this path.
    pub(crate) split: u64,
    /// Numbers that had arrived when the last of what is in flight was repeated.
    arrived_at_tail: Option<u64>,
    pub(crate) is_up: bool,
    /// When something was last heard that answers what went out here.
    progress_at: Instant,
    /// When this box went on after it had been held up: it waits anew from there, once between two answers.
    resumed_at: Option<Instant>,
    /// Since when an answer is awaited.
    waits_since: Option<Instant>,
    last_sent_at: Instant,
    /// PINGs without an answer, the newest last.
    asked: VecDeque<Asked>,
    /// When the next PING is due.
    pub(crate) ping_at: Instant,
    tail_probes: u32,
    pub(crate) outages: u64,
}

impl WayOut {
    /// A way of which it is not known whether it works: it is asked at once.
    pub(crate) fn new(now: Instant, config: &Config, path: &PathConfig, seed: u64) -> Self {
        let mtu = PathMtu::new(now, path.mtu_max);
        WayOut {
            flight: Flight::new(on_wire(mtu.floor())),
            parity: ParityOut::new(config.parity),
            pace: Pace::new(path, seed),
            mtu,
            split: 0,
            arrived_at_tail: None,
            is_up: false,
            progress_at: now,
            resumed_at: None,
            waits_since: None,
            last_sent_at: now,
            asked: VecDeque::with_capacity(ASKED_MAX),
            ping_at: now,
            tail_probes: 0,
            outages: 0,
        }
    }

    /// Wait before an acknowledgement of what comes from a box as far away as this.
    pub(crate) fn ack_delay(&self, config: &Config) -> Duration {
        let sixteenth = self.flight.rtt.smoothed().divided_by(16);
        let delay = if sixteenth == Duration::ZERO { config.ack_delay_max } else { sixteenth };
        delay.clamp(Duration::from_us(10), config.ack_delay_max)
    }

    /// True when a datagram may go now, as far as the adaptive rate goes. `may_exceed`: it does not wait for acknowledgements.
    #[inline]
    pub(crate) fn is_open(&mut self, now: Instant, may_exceed: bool) -> bool {
        let in_flight = self.flight.in_flight_bytes();
        self.pace.as_mut().is_none_or(|pace| pace.is_open(now, in_flight, may_exceed))
    }

    /// There is nothing to send but parity. `gate` is the path's.
    #[inline]
    pub(crate) fn note_room(&mut self, now: Instant, gate: &Gate) {
        let adapted = self.pace.as_ref().map(|pace| pace.rate().rate());
        self.parity.note_room(now, adapted.or(gate.rate()));
    }

    /// Counts what goes out, in bytes on the wire.
    #[inline]
    pub(crate) fn take(&mut self, now: Instant, bytes: u64) {
        if let Some(pace) = &mut self.pace {
            pace.take(now, bytes);
        }
    }

    /// Notes a numbered transmission, `bytes` on the wire.
    #[inline]
    pub(crate) fn note_sent(&mut self, now: Instant, record: u32, bytes: u64) {
        self.flight.note(now, record, bytes);
        self.last_sent_at = now;
        self.waits_since.get_or_insert(now);
    }

    /// Puts a datagram, which goes out now under `number`, the next, under parity: its protected head and its body.
    #[inline]
    pub(crate) fn protect(
        &mut self,
        now: Instant,
        number: u64,
        head: &[u8],
        body: &Body<'_>,
        wire_bytes: u64,
    ) {
        let uncovered = self.parity.add(now, number, head, body, wire_bytes);
        self.flight.cover(now, uncovered, number + 1);
    }

    /// Notes a PARITY datagram.
    pub(crate) fn note_parity_sent(&mut self, now: Instant) {
        self.flight.note_parity(now);
        self.last_sent_at = now;
    }

    /// Notes that it was asked.
    pub(crate) fn note_asked(&mut self, config: &Config, asked: Asked) {
        self.waits_since.get_or_insert(asked.at);
        if self.asked.len() == ASKED_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back(asked);
        let quarter = self.flight.rtt.smoothed().divided_by(4);
        let again = match self.is_up {
            true => config.keep_alive.max(quarter),
            false if quarter == Duration::ZERO => PING_AGAIN_UNKNOWN,
            false => quarter.max(PING_AGAIN_MIN),
        };
        self.ping_at = asked.at + again;
    }

    /// The far box has answered something that went out here.
    #[inline]
    pub(crate) fn note_progress(&mut self, now: Instant) {
        self.progress_at = now;
        self.resumed_at = None;
        self.tail_probes = 0;
        if self.flight.in_flight() == 0 {
            self.arrived_at_tail = None;
        }
        if self.flight.in_flight() == 0 && self.asked.is_empty() {
            self.waits_since = None;
        } else if self.waits_since.is_some() {
            self.waits_since = Some(now);
        }
    }

    /// True when a PING with this secret has no answer.
    pub(crate) fn has_asked(&self, nonce: u64) -> bool {
        self.asked.iter().any(|asked| asked.nonce == nonce)
    }

    /// The answer to a PING. False: to none of ours.
    pub(crate) fn answered(&mut self, now: Instant, nonce: u64) -> bool {
        let Some(place) = self.asked.iter().position(|asked| asked.nonce == nonce) else { return false };
        let asked = self.asked[place];
        self.asked.drain(..=place);
        self.note_rtt(now, now.since(asked.at));
        self.is_up = true;
        self.note_progress(now);
        true
    }

    /// The answer to a PING that asked for a length. False: to none of ours.
    pub(crate) fn answered_length(&mut self, now: Instant, nonce: u64) -> bool {
        let is_ours = self.mtu.answered(now, nonce);
        self.flight.long_from = on_wire(self.mtu.floor());
        is_ours
    }

    /// Long datagrams do not get through any more: what is under way of them is lost, and what they lost says nothing of the rest.
    fn collapse(&mut self, now: Instant, told: impl FnMut(u32, Fate)) {
        self.flight.long_lost = 0;
        if !self.mtu.collapse(now) {
            return;
        }
        self.flight.long_from = on_wire(self.mtu.floor());
        self.parity.reset(self.flight.next_number());
        self.pace.iter_mut().for_each(Pace::reset);
        self.flight.give_up_longer(on_wire(self.mtu.get()), told);
    }

    /// Takes for lost what is, after acknowledgements and in time.
    pub(crate) fn detect(&mut self, now: Instant, mut told: impl FnMut(u32, Fate)) {
        self.flight.detect(now, &mut told);
        if self.flight.long_lost >= LOST_IN_A_ROW {
            self.collapse(now, told);
        }
    }

    fn flush_at(&self, config: &Config) -> Option<Instant> {
        self.parity.flush_at(self.ack_delay(config), self.flight.rtt.smoothed().divided_by(8))
    }

    /// A round trip measured by a question.
    pub(crate) fn note_rtt(&mut self, now: Instant, rtt: Duration) {
        self.flight.rtt.sample(rtt);
        if let Some(pace) = &mut self.pace {
            pace.note_rtt(now, rtt);
        }
    }

    fn tail_at(&self, config: &Config) -> Option<Instant> {
        if self.flight.in_flight() == 0 {
            return None;
        }
        let rtt = &self.flight.rtt;
        let window = self.flight.reordering.window(rtt.smoothed());
        let wait = rtt.patience() + window + self.ack_delay(config).times(2);
        let wait = wait.times(1 << self.tail_probes.min(BACKOFF_MAX));
        Some(self.last_sent_at.max(self.waits_anew_from()) + wait)
    }

    /// The last moment that shows that an answer may still come.
    fn waits_anew_from(&self) -> Instant {
        self.resumed_at.unwrap_or(self.progress_at).max(self.progress_at)
    }

    /// Answers may have come while this box was held up, and lie unread.
    fn note_if_held_up(&mut self, now: Instant, config: &Config) {
        let due = [self.out_at(config), self.tail_at(config)].into_iter().flatten().min();
        if self.resumed_at.is_none() && due.is_some_and(|due| now.since(due) >= HELD_UP) {
            self.resumed_at = Some(now);
        }
    }

    fn out_at(&self, config: &Config) -> Option<Instant> {
        let since = self.waits_since.filter(|_| self.is_up)?;
        Some(since.max(self.waits_anew_from()) + self.flight.rtt.patience() + config.path_out_after)
    }

    /// True when the next PING is due.
    pub(crate) fn wants_ping(&self, now: Instant) -> bool {
        self.ping_at <= now
    }

    /// What time brings: losses, a tail to be repeated, the end of the way. True when it is out.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        config: &Config,
        mut told: impl FnMut(u32, Fate),
        mut probe: impl FnMut(u32),
    ) -> bool {
        if self.flush_at(config).is_some_and(|at| at <= now) {
            self.parity.flush();
            let next = self.flight.next_number();
            self.flight.cover(now, next, next);
        }
        self.detect(now, &mut told);
        self.note_if_held_up(now, config);
        if self.out_at(config).is_some_and(|at| at <= now) {
            self.is_up = false;
            self.outages += 1;
            self.waits_since = None;
            self.resumed_at = None;
            self.asked.clear();
            self.ping_at = now;
            self.parity.reset(self.flight.next_number());
            self.pace.iter_mut().for_each(Pace::reset);
            self.mtu.restart(now);
            self.flight.long_from = on_wire(self.mtu.floor());
            self.flight.give_up(told);
            return true;
        }
        if self.is_up && self.tail_at(config).is_some_and(|at| at <= now) {
            self.flight.tail(TAIL).for_each(&mut probe);
            self.tail_probes += 1;
            self.last_sent_at = now;
            // PINGs are answered, or the path would be out, and none of this is: it may be too long.
            let arrived = self.flight.arrived;
            let is_silent = self.arrived_at_tail.replace(arrived) == Some(arrived);
            if is_silent && self.flight.has_longer(self.flight.long_from) {
                self.collapse(now, told);
            }
        }
        false
    }

    /// When [`WayOut::tick`] is to be called next.
    pub(crate) fn deadline(&self, config: &Config) -> Option<Deadline> {
        let at = |at: Option<Instant>, reason| at.map(|at| Deadline { at, reason });
        let tail = self.tail_at(config).filter(|_| self.is_up);
        [
            at(self.flight.detect_at(), "loss detection"),
            at(tail, "tail probe"),
            at(self.flush_at(config), "parity of a tail"),
            at(self.out_at(config), "answer of a path"),
            at(self.pace.as_ref().and_then(Pace::waiting_until), "pacing"),
        ]
        .into_iter()
        .fold(None, Deadline::earliest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_ms(1);

    /// A way with one datagram under way, sent now.
    fn waiting(now: Instant, config: &Config) -> WayOut {
        let mut way = WayOut::new(now, config, &PathConfig::default(), 1);
        way.note_rtt(now, RTT);
        way.is_up = true;
        way.note_sent(now, 0, 500);
        way
    }

    /// Meets the deadlines that are due at `now`: whether the way is out by that, and what it repeats.
    fn tick(way: &mut WayOut, now: Instant, config: &Config) -> (bool, u32) {
        let mut repeated = 0;
        let is_out = way.tick(now, config, |_, _| {}, |_| repeated += 1);
        (is_out, repeated)
    }

    #[test]
    fn silence_counts_from_when_a_box_that_was_held_up_goes_on() {
        let (config, start) = (Config::default(), Instant::from_ns(1_000_000));
        let mut way = waiting(start, &config);
        let late = start + Duration::from_ms(200);
        assert_eq!(tick(&mut way, late, &config), (false, 0));
        let due = way.deadline(&config).unwrap();
        assert!(due.at > late, "{due:?}");
        way.note_progress(due.at);
        assert!(way.is_up);
    }

    #[test]
    fn a_box_that_is_held_up_all_the_time_gives_a_path_up_too() {
        let (config, mut now) = (Config::default(), Instant::from_ns(1_000_000));
        let mut way = waiting(now, &config);
        let ticks = (1..10).find(|_| {
            now += Duration::from_ms(200);
            tick(&mut way, now, &config).0
        });
        assert_eq!(ticks, Some(2));
    }

    #[test]
    fn who_is_in_time_repeats_and_gives_up_at_once() {
        let (config, start) = (Config::default(), Instant::from_ns(1_000_000));
        let mut way = waiting(start, &config);
        let due = way.deadline(&config).unwrap();
        assert_eq!(due.reason, "tail probe");
        assert_eq!(tick(&mut way, due.at, &config), (false, 1));
        let mut now = due.at;
        while !tick(&mut way, now, &config).0 {
            now = way.deadline(&config).unwrap().at;
        }
        let most = config.path_out_after + way.flight.rtt.patience();
        assert!(now.since(start) <= most, "after {:?}", now.since(start));
    }
}
