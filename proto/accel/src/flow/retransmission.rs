//! Retransmission towards a responder: timer, probes, go-back-N, and the RTT samples of its
//! answers.

use super::rtt::Rtt;
use super::window::Window;
use crate::Config;
use crate::store::Store;
use longhaul_units::{Duration, Instant};

/// Longest wait for an event that may occur by itself: a requester repeating a READ after a gap in
/// its responses, or the second answer of a slow responder.
const GRACE_MAX: Duration = Duration::from_ms(2);

/// A probe of a silent responder: the oldest packet, retransmitted with AckReq.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    None,
    Due,
    Sent(Instant),
    /// A delivery followed, acknowledged either by an answer to the probe or by a late answer to an
    /// earlier packet. This is the deadline for a second one, which decides.
    Answered(Instant),
}

/// Why packets are retransmitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    Nak,
    Rnr,
    Timeout,
}

/// Target and time of the last go-back for a sequence NAK.
#[derive(Clone, Copy, Debug)]
struct GoneBack {
    to: u64,
    at: Instant,
}

/// When packets are retransmitted to a responder, and how many may be outstanding.
#[derive(Debug)]
pub(crate) struct Retransmission {
    rtt: Rtt,
    /// The retransmission timer starts here, or when the oldest packet was sent if that was later.
    timer_base: Instant,
    /// Consecutive timeouts.
    backoff: u32,
    probe: Probe,
    /// Consecutive probes that were answered sooner than the path seemed to allow.
    early_answers: u8,
    /// Time of the last retransmission, which a later ACK may answer.
    resent_at: Instant,
    /// When the responder was last heard, or a packet was first stored for it.
    heard_at: Instant,
    /// When it last accepted something or asked for a pause, or a packet was first stored for it.
    advanced_at: Instant,
    rnr_until: Option<Instant>,
    gone_back: Option<GoneBack>,
    /// First packet of the last go-back, while its delivery yields an RTT sample.
    timed: Option<u64>,
    cause: Cause,
    window: Window,
}

impl Retransmission {
    pub(crate) fn new(now: Instant, window: Window) -> Self {
        Retransmission {
            rtt: Rtt::default(),
            timer_base: now,
            backoff: 0,
            probe: Probe::None,
            early_answers: 0,
            resent_at: Instant::ZERO,
            heard_at: now,
            advanced_at: now,
            rnr_until: None,
            gone_back: None,
            timed: None,
            cause: Cause::Nak,
            window,
        }
    }

    /// For the next state of the flow: only the measurements of the path are kept.
    pub(crate) fn afresh(&self) -> Self {
        let Retransmission { rtt, timer_base, early_answers, resent_at, heard_at, .. } = *self;
        Retransmission {
            rtt,
            timer_base,
            early_answers,
            resent_at,
            ..Retransmission::new(heard_at, self.window.afresh())
        }
    }

    pub(crate) fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    pub(crate) fn timeout(&self, config: &Config) -> Duration {
        self.rtt.timeout(config, self.backoff)
    }

    /// Consecutive timeouts.
    pub(crate) fn backoff(&self) -> u32 {
        self.backoff
    }

    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// When the responder last accepted something or asked for a pause. One that answers and never
    /// accepts the oldest packet, because it discards it or the path does, is lost as a silent one.
    pub(crate) fn advanced_at(&self) -> Instant {
        self.advanced_at
    }

    /// Notes that the responder was heard, or that no answer was expected before `now`.
    #[inline]
    pub(crate) fn note_heard(&mut self, now: Instant) {
        self.heard_at = now;
        self.advanced_at = now;
    }

    /// Notes an ACK or sequence NAK of the responder, which may acknowledge nothing new.
    #[inline]
    pub(crate) fn note_answer(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Restarts the retransmission timer.
    #[inline]
    pub(crate) fn restart_timer(&mut self, now: Instant) {
        self.timer_base = now;
    }

    /// When the retransmission timer expires, if it runs.
    #[inline]
    pub(crate) fn due(&self, config: &Config, store: &Store) -> Option<Instant> {
        let runs = self.rnr_until.is_none() && store.is_outstanding() && self.probe != Probe::Due;
        runs.then(|| {
            let oldest_sent_at = store.entry(0).map_or(Instant::ZERO, |entry| entry.sent_at);
            self.timer_base.max(oldest_sent_at) + self.timeout(config)
        })
    }

    /// Notes that the retransmission timer has expired.
    pub(crate) fn note_timeout(&mut self) {
        self.backoff += 1;
    }

    /// Has a probe sent, and restarts the timer.
    pub(crate) fn probe(&mut self, now: Instant) {
        self.timer_base = now;
        self.probe = Probe::Due;
    }

    /// Retransmits all packets that are not known to be delivered.
    pub(crate) fn resend_all(&mut self, now: Instant, store: &mut Store) {
        self.timer_base = now;
        self.cause = Cause::Timeout;
        store.rewind_to(store.responder_next);
    }

    /// True unless the responder has asked for a pause until [`Retransmission::rnr_until`].
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.rnr_until.is_none()
    }

    /// True if a packet may be sent with `outstanding` PSNs outstanding.
    #[inline]
    pub(crate) fn is_open(&self, outstanding: impl FnOnce() -> u64) -> bool {
        self.window.is_open(outstanding)
    }

    #[inline]
    pub(crate) fn is_probe_due(&self) -> bool {
        self.probe == Probe::Due
    }

    /// True if only the retransmission timer can be pending.
    #[inline]
    pub(crate) fn is_steady(&self) -> bool {
        self.rnr_until.is_none() && !matches!(self.probe, Probe::Answered(_))
    }

    pub(crate) fn rnr_until(&self) -> Option<Instant> {
        self.rnr_until
    }

    /// Pauses transmission until `until`, as the responder has asked.
    pub(crate) fn wait_for_responder(&mut self, until: Instant) {
        self.rnr_until = Some(until);
    }

    /// Ends the RNR wait if it is over.
    pub(crate) fn end_wait(&mut self, now: Instant) {
        if self.rnr_until.take_if(|at| *at <= now).is_some() {
            self.timer_base = now;
        }
    }

    /// Deadline by which a second answer shows the meaning of the first.
    pub(crate) fn answer_until(&self) -> Option<Instant> {
        match self.probe {
            Probe::Answered(at) => Some(at),
            _ => None,
        }
    }

    /// Goes back if the deadline passed without another delivery: the packets sent before the probe
    /// are lost.
    pub(crate) fn judge_answer(&mut self, now: Instant, store: &mut Store) {
        if self.answer_until().is_some_and(|at| at <= now) {
            let next = store.responder_next;
            self.go_back(store, next, Cause::Timeout);
        }
    }

    /// Has a probe sent if the last one, or the last progress, is at least `patience` ago.
    pub(crate) fn ask(&mut self, now: Instant, patience: Duration, store: &Store) {
        let asked_at = match self.probe {
            Probe::Due | Probe::Answered(_) => return,
            Probe::Sent(at) => at,
            Probe::None => self.timer_base,
        };
        if now.since(asked_at) >= patience && store.is_outstanding() && self.may_send() {
            self.probe = Probe::Due;
        }
    }

    /// Notes that a probe was sent.
    pub(crate) fn note_probe_sent(&mut self, now: Instant) {
        self.probe = Probe::Sent(now);
        self.timed = None;
        self.resent_at = now;
        self.timer_base = now;
    }

    /// Notes that a packet was retransmitted.
    #[inline]
    pub(crate) fn note_resent(&mut self, now: Instant) {
        self.resent_at = now;
    }

    /// Why packets are retransmitted.
    pub(crate) fn cause(&self) -> Cause {
        self.cause
    }

    /// Retransmits from `seq` on.
    pub(crate) fn go_back(&mut self, store: &mut Store, seq: u64, cause: Cause) {
        match cause {
            Cause::Rnr => self.window.note_not_ready(store.outstanding()),
            Cause::Nak | Cause::Timeout => {
                self.window.note_loss(seq, store.outstanding(), store.sent_to());
            }
        }
        self.cause = cause;
        self.probe = Probe::None;
        store.rewind_to(seq);
    }

    /// Handles a sequence NAK of the responder for `seq`: goes back at most once per missing packet
    /// and round trip. Returns `true` if it does.
    pub(crate) fn go_back_to_lost(&mut self, now: Instant, store: &mut Store, seq: u64) -> bool {
        let is_under_way = |back: GoneBack| back.to == seq && !self.rtt.can_answer(back.at, now);
        if self.gone_back.is_some_and(is_under_way) {
            return false;
        }
        // A packet that is retransmitted twice does not show which copy arrived.
        self.timed = self.gone_back.is_none_or(|back| back.to != seq).then_some(seq);
        self.gone_back = Some(GoneBack { to: seq, at: now });
        self.go_back(store, seq, Cause::Nak);
        true
    }

    /// Notes that the responder has everything before `next`; `psns_max` PSNs may be stored.
    #[inline]
    pub(crate) fn note_delivered(&mut self, now: Instant, store: &Store, next: u64, psns_max: u64) {
        self.measure_recovery(now, store, next);
        self.window.note_delivered(next - store.responder_next, psns_max);
    }

    /// Takes an RTT sample from the recovery of a lost packet. Under loss few packets are sent
    /// exactly once, as Karn's rule demands. But the responder drops all copies behind a gap that
    /// were sent before the gap was filled: the copy that arrives is the last one sent.
    #[inline]
    fn measure_recovery(&mut self, now: Instant, store: &Store, next: u64) {
        let Some(seq) = self.timed.take_if(|seq| *seq < next) else { return };
        let Some(GoneBack { at, .. }) = self.gone_back else { return };
        let sent_at = store.entry(store.index_of(seq)).map(|entry| entry.sent_at);
        if let Some(sent_at) = sent_at.filter(|&sent| sent >= at && self.rtt.can_answer(sent, now))
        {
            self.rtt.sample(sent_at, now);
        }
    }

    /// Takes an RTT sample of a packet that was sent once, at `sent_at`, and acknowledged by its
    /// PSN.
    #[inline]
    pub(crate) fn sample(&mut self, sent_at: Instant, now: Instant) {
        if sent_at > self.resent_at {
            self.rtt.sample(sent_at, now);
        }
    }

    /// Restarts the retransmission timer and, if this answers a probe, waits for a second answer.
    ///
    /// The path keeps order: packets sent before the probe that its answer does not acknowledge are
    /// lost. But a responder that was merely slow answers the earlier packets one by one, and the
    /// first of these answers looks like the answer to the probe. The second answer decides, as in
    /// F-RTO (RFC 5682): if it comes soon, nothing is lost.
    pub(crate) fn note_progress(&mut self, now: Instant, store: &Store) {
        self.timer_base = now;
        self.advanced_at = now;
        self.backoff = 0;
        let mut answered = false;
        if let Probe::Sent(at) = self.probe {
            answered = self.rtt.can_answer(at, now) || self.early_answers > 0;
            if answered {
                self.rtt.shorten(now.since(at));
                self.early_answers = 0;
            } else {
                self.early_answers += 1;
            }
        }
        let open = answered && store.is_outstanding();
        self.probe = if open { Probe::Answered(now + self.grace()) } else { Probe::None };
    }

    /// How long to wait for an event that may occur by itself.
    pub(crate) fn grace(&self) -> Duration {
        self.rtt.smoothed().unwrap_or(GRACE_MAX).divided_by(4).min(GRACE_MAX)
    }
}
