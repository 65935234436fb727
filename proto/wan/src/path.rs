//! Sending half of one path to the far box, for one session.

use crate::flight::{Fate, Flight};
use crate::long_losses::LOST_MAX;
use crate::mtu::PathMtu;
use crate::pace::Pace;
use crate::parity_out::ParityOut;
use crate::silence::{HELD_UP, Silence};
use crate::{Config, PathConfig};
use longhaul_cc::{Gate, wire_bytes};
use longhaul_fec::Body;
use longhaul_node::Deadline;
use longhaul_units::{Duration, Instant};
use std::collections::VecDeque;

/// Maximum number of transmissions that a tail probe retransmits.
pub(crate) const TAIL: usize = 8;
/// Consecutive tail probes that double the wait for the next.
const BACKOFF_MAX: u32 = 4;
/// Minimum interval between PINGs on a path that is down.
pub(crate) const PING_AGAIN_MIN: Duration = Duration::from_ms(10);
/// The same while the path's RTT is unknown.
pub(crate) const PING_AGAIN_UNKNOWN: Duration = Duration::from_ms(100);
/// Times that the wait for the answer of a path of unknown RTT doubles, starting at
/// [`PING_AGAIN_MIN`]. Hosts wait for it too, and the remembered PINGs cover the longest path.
const PING_DOUBLES_MAX: u32 = 4;
/// Ethernet header with a VLAN tag, in bytes.
const ETHERNET: usize = 18;
/// Maximum number of unanswered PINGs; at most one is sent per quarter of a round trip.
const PINGS_MAX: usize = 8;

/// Maximum bytes on the wire of an IP packet of this length.
fn on_wire(len: u16) -> u64 {
    wire_bytes(usize::from(len) + ETHERNET)
}

/// An unanswered PING.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutstandingPing {
    pub(crate) nonce: u64,
    pub(crate) at: Instant,
}

pub(crate) struct TxPath {
    pub(crate) flight: Flight,
    pub(crate) parity: ParityOut,
    /// `None` if the rate does not adapt.
    pub(crate) pace: Option<Pace>,
    pub(crate) mtu: PathMtu,
    /// Frames and parts that were split for this path.
    pub(crate) split: u64,
    /// Numbers that had arrived when the current tail was first retransmitted, and the time of
    /// that.
    arrived_at_tail: Option<(u64, Instant)>,
    pub(crate) is_up: bool,
    pub(crate) silence: Silence,
    last_sent_at: Instant,
    /// Time at which the newest answered PING was sent.
    answered_from: Instant,
    /// Numbers that had arrived when a PING that overtook long datagrams was answered, and the time
    /// of that.
    arrived_at_answer: Option<(u64, Instant)>,
    /// Unanswered PINGs, the newest last.
    pings: VecDeque<OutstandingPing>,
    /// Time of the next PING.
    pub(crate) ping_at: Instant,
    tail_probes: u32,
    /// Time of the last `tick`.
    ticked_at: Instant,
    pub(crate) outages: u64,
}

impl TxPath {
    /// Creates a path that is not known to work; a PING is due at once.
    pub(crate) fn new(now: Instant, config: &Config, path: &PathConfig, seed: u64) -> Self {
        let mtu = PathMtu::new(now, path.mtu_max);
        TxPath {
            flight: Flight::new(on_wire(mtu.floor())),
            parity: ParityOut::new(config.parity),
            pace: Pace::new(path, seed),
            mtu,
            split: 0,
            arrived_at_tail: None,
            is_up: false,
            silence: Silence::new(now),
            last_sent_at: now,
            answered_from: now,
            arrived_at_answer: None,
            pings: VecDeque::with_capacity(PINGS_MAX),
            ping_at: now,
            tail_probes: 0,
            ticked_at: now,
            outages: 0,
        }
    }

    /// Acknowledgement delay for a box at this distance.
    pub(crate) fn ack_delay(&self, config: &Config) -> Duration {
        let sixteenth = self.flight.rtt.smoothed().divided_by(16);
        let delay = if sixteenth == Duration::ZERO { config.ack_delay_max } else { sixteenth };
        delay.clamp(Duration::from_us(10), config.ack_delay_max)
    }

    /// `true` if the adaptive rate permits a datagram to be sent. `may_exceed`: it need not wait
    /// for acknowledgements.
    #[inline]
    pub(crate) fn is_open(&mut self, now: Instant, may_exceed: bool) -> bool {
        let in_flight = self.flight.in_flight_bytes();
        self.pace.as_mut().is_none_or(|pace| pace.is_open(now, in_flight, may_exceed))
    }

    /// Notes that nothing but parity waits. `gate` is the path's.
    #[inline]
    pub(crate) fn note_room(&mut self, now: Instant, gate: &Gate) {
        let adapted = self.pace.as_ref().map(|pace| pace.rate().rate());
        self.parity.note_room(now, adapted.or(gate.own_rate()));
    }

    /// Counts a transmission, in bytes on the wire.
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
        self.silence.wait(now);
    }

    /// Puts the datagram that is sent under `number`, the next, under parity: its protected head
    /// and its body.
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

    /// Notes that a PING was sent.
    pub(crate) fn note_ping_sent(&mut self, config: &Config, ping: OutstandingPing) {
        self.silence.wait(ping.at);
        if self.pings.len() == PINGS_MAX {
            self.pings.pop_front();
        }
        self.pings.push_back(ping);
        let again = match self.is_up {
            true => config.keep_alive.max(self.ping_interval()),
            false if self.flight.rtt.smoothed() == Duration::ZERO => {
                let pings_before = (self.pings.len() as u32 - 1).min(PING_DOUBLES_MAX);
                PING_AGAIN_MIN.times(1 << pings_before)
            }
            false => self.ping_interval(),
        };
        self.ping_at = ping.at + again;
    }

    /// Interval between PINGs on a path that does not answer.
    fn ping_interval(&self) -> Duration {
        self.flight.rtt.smoothed().divided_by(4).max(PING_AGAIN_MIN)
    }

    /// Time of the next PING: soon after an answer is overdue, and then at intervals.
    pub(crate) fn ping_at(&self, config: &Config) -> Instant {
        let Some(overdue) = self.overdue_at(config) else { return self.ping_at };
        let again = self.pings.back().map(|ping| ping.at + self.ping_interval());
        self.ping_at.min(again.map_or(overdue, |again| again.max(overdue)))
    }

    /// Time from which the far box's answer is overdue.
    fn overdue_at(&self, config: &Config) -> Option<Instant> {
        let since = self.silence.since().filter(|_| self.is_up)?;
        Some(since + self.flight.rtt.response_timeout() + Silence::overdue_after(config))
    }

    /// True while an answer is overdue.
    pub(crate) fn is_overdue(&self, now: Instant, config: &Config) -> bool {
        self.overdue_at(config).is_some_and(|at| at <= now)
    }

    /// `true` if nothing was heard lately only because no answer was due.
    pub(crate) fn is_idle(&self, now: Instant, config: &Config) -> bool {
        let lately = Silence::overdue_after(config).times(2);
        self.is_up && self.silence.is_idle() && self.silence.heard_at() + lately <= now
    }

    /// Time up to which answers show that the far box ran, while none is overdue.
    pub(crate) fn far_ran_at(&self, now: Instant, config: &Config) -> Option<Instant> {
        let half = self.flight.rtt.smoothed().divided_by(2).as_ps();
        let at = Instant::from_ps(self.silence.heard_at().as_ps().saturating_sub(half));
        (self.is_up && !self.is_overdue(now, config)).then_some(at)
    }

    /// Notes that the far box has answered something sent on this path.
    #[inline]
    pub(crate) fn note_progress(&mut self, now: Instant) {
        self.tail_probes = 0;
        let is_in_flight = self.flight.in_flight() > 0;
        if !is_in_flight {
            self.arrived_at_tail = None;
        }
        self.silence.end(now, is_in_flight || !self.pings.is_empty());
    }

    /// `true` if a PING with this secret is unanswered.
    pub(crate) fn is_outstanding(&self, nonce: u64) -> bool {
        self.pings.iter().any(|ping| ping.nonce == nonce)
    }

    /// Handles the answer to a PING. Returns `false` if it answers none of this path's.
    pub(crate) fn answered(&mut self, now: Instant, nonce: u64) -> bool {
        let Some(place) = self.pings.iter().position(|ping| ping.nonce == nonce) else {
            return false;
        };
        let ping = self.pings[place];
        self.pings.drain(..=place);
        self.answered_from = self.answered_from.max(ping.at);
        self.note_overtaken(now, ping.at);
        if self.flight.rtt.smoothed() == Duration::ZERO {
            // PINGs were frequent because none was answered.
            self.ping_at = self.ping_at.max(ping.at + PING_AGAIN_UNKNOWN);
        }
        self.note_rtt(now, now.since(ping.at));
        self.is_up = true;
        self.note_progress(now);
        true
    }

    /// Detects a black hole when the PING that was sent at `asked_at` is answered: two PINGs were
    /// answered, the second sent after the answer to the first, and no long datagram arrived in
    /// between.
    fn note_overtaken(&mut self, now: Instant, asked_at: Instant) {
        let arrived = self.flight.arrived;
        if self.flight.long_before(asked_at, LOST_MAX as usize) < LOST_MAX as usize {
            self.arrived_at_answer = None;
            return;
        }
        match self.arrived_at_answer {
            Some((before, at)) if before == arrived && asked_at < at => {}
            Some((before, _)) if before == arrived => self.flight.long.overtaken(),
            _ => self.arrived_at_answer = Some((arrived, now)),
        }
    }

    /// Handles the answer to a PING that probed a length. Returns `false` if it answers none of
    /// this path's.
    pub(crate) fn answered_length(&mut self, now: Instant, nonce: u64) -> bool {
        let is_ours = self.mtu.answered(now, nonce);
        self.flight.long.from = on_wire(self.mtu.floor());
        is_ours
    }

    /// Handles a black hole: the long datagrams in flight are lost, which says nothing about
    /// shorter ones.
    fn collapse(&mut self, now: Instant, told: impl FnMut(u32, Fate)) {
        self.flight.long.clear();
        if !self.mtu.collapse(now) {
            return;
        }
        self.flight.long.from = on_wire(self.mtu.floor());
        self.parity.reset(self.flight.next_number());
        self.flight.end_block(now);
        self.pace.iter_mut().for_each(Pace::reset);
        self.flight.give_up_longer(on_wire(self.mtu.get()), told);
    }

    /// Detects losses from acknowledgements and time.
    pub(crate) fn detect(&mut self, now: Instant, mut told: impl FnMut(u32, Fate)) {
        self.flight.detect(now, &mut told);
        if self.flight.long.are_of_a_black_hole() {
            self.collapse(now, told);
        }
    }

    fn flush_at(&self, config: &Config) -> Option<Instant> {
        self.parity.flush_at(self.ack_delay(config), self.flight.rtt.smoothed().divided_by(8))
    }

    /// Notes an RTT measured by a PING.
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
        let wait = rtt.response_timeout() + window + self.ack_delay(config).times(2);
        let wait = wait.times(1 << self.tail_probes.min(BACKOFF_MAX));
        Some(self.last_sent_at.max(self.silence.waits_anew_from()) + wait)
    }

    /// Extends waits if this box was held up: answers may lie unread.
    fn note_if_held_up(&mut self, now: Instant, config: &Config) {
        let due = [self.overdue_at(config), self.tail_at(config)].into_iter().flatten();
        let due = due
            .chain(self.out_at(config).into_iter().flatten())
            .filter(|at| *at > self.ticked_at)
            .min();
        if due.is_some_and(|due| now.since(due) >= HELD_UP) {
            self.silence.excuse(now, config);
        }
        self.ticked_at = now;
    }

    /// Times at which the path is down: the first applies if the far box runs, as `far_ran_at`
    /// shows, the second in any case. Leaving a path does not help if the far box only waits for a
    /// core.
    fn out_at(&self, config: &Config) -> Option<[Instant; 2]> {
        let since = self.silence.since().filter(|_| self.is_up)?;
        let answer_at = since + self.flight.rtt.response_timeout();
        Some([answer_at + config.path_out_after, answer_at + Silence::longest(config)])
    }

    /// `true` if the path is down.
    fn is_out(&self, now: Instant, config: &Config, far_ran_at: Option<Instant>) -> bool {
        let Some([first, last]) = self.out_at(config) else { return false };
        let far_ran = far_ran_at.is_some_and(|at| at + config.path_out_after >= first);
        last <= now || first <= now && far_ran
    }

    /// `true` if a PING is due.
    pub(crate) fn wants_ping(&self, now: Instant, config: &Config) -> bool {
        self.ping_at(config) <= now
    }

    /// Handles time: losses, tail probes, the end of the path. Returns `true` if the path is down.
    /// `far_ran_at` is the time up to which other paths show that the far box ran.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        config: &Config,
        far_ran_at: Option<Instant>,
        mut told: impl FnMut(u32, Fate),
        mut probe: impl FnMut(u32),
    ) -> bool {
        if self.flush_at(config).is_some_and(|at| at <= now) {
            self.parity.flush();
            self.flight.end_block(now);
        }
        self.detect(now, &mut told);
        self.note_if_held_up(now, config);
        if self.is_out(now, config, far_ran_at) {
            self.is_up = false;
            self.outages += 1;
            self.silence.give_up();
            self.pings.clear();
            self.ping_at = now;
            self.parity.reset(self.flight.next_number());
            self.pace.iter_mut().for_each(Pace::reset);
            self.mtu.restart(now);
            self.flight.long.from = on_wire(self.mtu.floor());
            self.flight.give_up(told);
            return true;
        }
        if self.is_up && self.tail_at(config).is_some_and(|at| at <= now) {
            self.flight.tail(TAIL).for_each(&mut probe);
            self.tail_probes += 1;
            self.last_sent_at = now;
            // A later PING was answered and none of the tail arrived: it may be too long.
            let arrived = self.flight.arrived;
            let first = self.arrived_at_tail.filter(|(before, _)| *before == arrived);
            self.arrived_at_tail = first.or(Some((arrived, now)));
            let is_silent = first.is_some_and(|(_, at)| self.answered_from > at);
            if is_silent && self.flight.has_longer(self.flight.long.from) {
                self.arrived_at_tail = None;
                self.collapse(now, told);
            }
        }
        false
    }

    /// Time of the next [`TxPath::tick`]. `polled_at` is the time of the session's last opportunity
    /// to send.
    pub(crate) fn deadline(&self, config: &Config, polled_at: Instant) -> Option<Deadline> {
        let at = |at: Option<Instant>, reason| at.map(|at| Deadline { at, reason });
        let tail = self.tail_at(config).filter(|_| self.is_up);
        let ping = Some(self.ping_at(config)).filter(|at| *at > polled_at);
        let out =
            self.out_at(config).map(|[first, last]| if first > polled_at { first } else { last });
        [
            at(self.flight.detect_at(), "loss detection"),
            at(tail, "tail probe"),
            at(ping, "keep-alive"),
            at(self.flush_at(config), "parity of a tail"),
            at(out, "answer of a path"),
            at(self.pace.as_ref().and_then(Pace::waiting_until), "pacing"),
        ]
        .into_iter()
        .fold(None, Deadline::earliest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rtt::Rtt;

    const RTT: Duration = Duration::from_ms(1);

    /// A path with one datagram in flight, sent at `now`.
    fn waiting(now: Instant, config: &Config) -> TxPath {
        let mut tx_path = TxPath::new(now, config, &PathConfig::default(), 1);
        tx_path.note_rtt(now, RTT);
        tx_path.is_up = true;
        tx_path.note_sent(now, 0, 500);
        tx_path
    }

    /// Handles the deadlines due at `now`. Returns whether the path is down, and the number of
    /// retransmissions. `far_runs`: another path shows that the far box runs.
    fn tick(tx_path: &mut TxPath, now: Instant, config: &Config, far_runs: bool) -> (bool, u32) {
        let mut repeated = 0;
        let is_out =
            tx_path.tick(now, config, far_runs.then_some(now), |_, _| {}, |_| repeated += 1);
        (is_out, repeated)
    }

    #[test]
    fn silence_counts_from_when_a_box_that_was_held_up_goes_on() {
        let (config, start) = (Config::default(), Instant::from_ns(1_000_000));
        let mut tx_path = waiting(start, &config);
        let mut late = start;
        for _ in 0..3 {
            late += Duration::from_ms(80);
            assert_eq!(tick(&mut tx_path, late, &config, true), (false, 0));
        }
        let due = tx_path.deadline(&config, late).unwrap();
        assert!(due.at > late, "{due:?}");
        tx_path.note_progress(due.at);
        assert!(tx_path.is_up);
    }

    #[test]
    fn a_box_that_is_held_up_all_the_time_gives_a_path_up_too() {
        let (config, mut now) = (Config::default(), Instant::from_ns(1_000_000));
        let mut tx_path = waiting(now, &config);
        let ticks = (1..10).find(|_| {
            now += Duration::from_ms(200);
            tick(&mut tx_path, now, &config, true).0
        });
        assert_eq!(ticks, Some(2));
    }

    /// How long a silent path stays up, in a box that meets its deadlines.
    fn lasts(config: &Config, far_runs: bool) -> (Duration, Rtt) {
        let start = Instant::from_ns(1_000_000);
        let mut tx_path = waiting(start, config);
        let due = tx_path.deadline(config, start).unwrap();
        assert_eq!(due.reason, "tail probe");
        assert_eq!(tick(&mut tx_path, due.at, config, far_runs), (false, 1));
        let mut now = due.at;
        while !tick(&mut tx_path, now, config, far_runs).0 {
            now = tx_path.deadline(config, now).unwrap().at;
        }
        (now.since(start), tx_path.flight.rtt)
    }

    #[test]
    fn a_silent_path_is_left_at_once_if_another_one_shows_that_the_far_box_runs() {
        let config = Config::default();
        let (lasts, rtt) = lasts(&config, true);
        assert!(lasts <= config.path_out_after + rtt.response_timeout(), "after {lasts:?}");
    }

    #[test]
    fn a_far_box_that_is_silent_on_all_paths_is_waited_for() {
        let config = Config::default();
        let (lasts, rtt) = lasts(&config, false);
        assert_eq!(lasts, Silence::longest(&config) + rtt.response_timeout());
    }

    #[test]
    fn long_datagrams_are_given_up_only_after_a_short_one_was_answered() {
        let (config, mut now) = (Config::default(), Instant::from_ns(1_000_000));
        let mut tx_path = waiting(now, &config);
        tx_path.note_sent(now, 1, 1400);
        let mut pings = 0;
        while pings < 3 {
            now = tx_path.deadline(&config, now).unwrap().at;
            assert!(!tick(&mut tx_path, now, &config, false).0);
            if tx_path.wants_ping(now, &config) {
                pings += 1;
                tx_path.note_ping_sent(&config, OutstandingPing { nonce: pings, at: now });
            }
        }
        assert_eq!(
            (tx_path.mtu.black_holes, tx_path.tail_probes > 1),
            (0, true),
            "the far box may be held up"
        );
        assert!(tx_path.answered(now, pings));
        while tx_path.mtu.black_holes == 0 {
            now = tx_path.deadline(&config, now).unwrap().at;
            assert!(!tick(&mut tx_path, now, &config, false).0);
        }
    }
}
