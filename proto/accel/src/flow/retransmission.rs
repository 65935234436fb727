//! Retransmission towards a responder: the timer, its probes, going back, and the RTT that the
//! responder's answers show.

use super::rtt::Rtt;
use super::window::Window;
use crate::Config;
use crate::store::Store;
use longhaul_units::{Duration, Instant};

/// Longest time that is given to what may come by itself: a requester's repetition of a READ after
/// a gap in its responses, and the second of a slow responder's answers.
const GRACE_MAX: Duration = Duration::from_ms(2);

/// A question to a silent responder: the oldest packet, sent again with AckReq.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    None,
    Due,
    Sent(Instant),
    /// More was delivered since, by an answer to the probe or by packets from before it that came
    /// late: which of the two shows by this moment.
    Answered(Instant),
}

/// Why packets are sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    Nak,
    Rnr,
    Timeout,
}

/// Where a sequence NAK made the box go back to, and when.
#[derive(Clone, Copy, Debug)]
struct GoneBack {
    to: u64,
    at: Instant,
}

/// When packets are sent again to a responder, and how many may be outstanding.
#[derive(Debug)]
pub(crate) struct Retransmission {
    rtt: Rtt,
    /// The retransmission timer runs from here, or from when the oldest packet was sent if that was
    /// later.
    timer_base: Instant,
    /// Timeouts in a row.
    backoff: u32,
    probe: Probe,
    /// Probes in a row that were answered sooner than the path seemed to allow.
    early_answers: u8,
    /// When any packet was last sent again: an ACK may be an answer to that.
    resent_at: Instant,
    /// When the responder was last heard, or something was first stored for it.
    heard_at: Instant,
    rnr_until: Option<Instant>,
    gone_back: Option<GoneBack>,
    /// The first packet of the last going back, while its delivery tells the round trip.
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
            rnr_until: None,
            gone_back: None,
            timed: None,
            cause: Cause::Nak,
            window,
        }
    }

    /// Of another life of the flow: it keeps what is known of the path.
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

    /// The retransmission timeout.
    pub(crate) fn timeout(&self, config: &Config) -> Duration {
        self.rtt.timeout(config, self.backoff)
    }

    /// Timeouts in a row.
    pub(crate) fn backoff(&self) -> u32 {
        self.backoff
    }

    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// The responder was heard, or is not expected to have been before `now`.
    #[inline]
    pub(crate) fn note_heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// The retransmission timer starts anew.
    #[inline]
    pub(crate) fn restart_timer(&mut self, now: Instant) {
        self.timer_base = now;
    }

    /// When the retransmission timer ends, if it runs.
    #[inline]
    pub(crate) fn due(&self, config: &Config, store: &Store) -> Option<Instant> {
        let runs = self.rnr_until.is_none() && store.is_outstanding() && self.probe != Probe::Due;
        runs.then(|| {
            let oldest_sent_at = store.entry(0).map_or(Instant::ZERO, |entry| entry.sent_at);
            self.timer_base.max(oldest_sent_at) + self.timeout(config)
        })
    }

    /// The retransmission timer has ended.
    pub(crate) fn note_timeout(&mut self) {
        self.backoff += 1;
    }

    /// The responder is asked what it has.
    pub(crate) fn probe(&mut self, now: Instant) {
        self.timer_base = now;
        self.probe = Probe::Due;
    }

    /// Sends all again that the responder is not known to have.
    pub(crate) fn resend_all(&mut self, now: Instant, store: &mut Store) {
        self.timer_base = now;
        self.cause = Cause::Timeout;
        store.rewind_to(store.responder_next);
    }

    /// True unless the responder is to be left alone until [`Retransmission::rnr_until`].
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

    /// True if nothing but the retransmission timer is awaited here.
    #[inline]
    pub(crate) fn is_steady(&self) -> bool {
        self.rnr_until.is_none() && !matches!(self.probe, Probe::Answered(_))
    }

    pub(crate) fn rnr_until(&self) -> Option<Instant> {
        self.rnr_until
    }

    /// The responder has asked to be left alone until then.
    pub(crate) fn wait_for_responder(&mut self, until: Instant) {
        self.rnr_until = Some(until);
    }

    /// Ends the responder's RNR wait when it is over.
    pub(crate) fn end_wait(&mut self, now: Instant) {
        if self.rnr_until.take_if(|at| *at <= now).is_some() {
            self.timer_base = now;
        }
    }

    /// When it shows what the answer to a probe meant.
    pub(crate) fn answer_until(&self) -> Option<Instant> {
        match self.probe {
            Probe::Answered(at) => Some(at),
            _ => None,
        }
    }

    /// Nothing more was delivered since a probe was answered: what had been sent before it is lost.
    pub(crate) fn judge_answer(&mut self, now: Instant, store: &mut Store) {
        if self.answer_until().is_some_and(|at| at <= now) {
            let next = store.responder_next;
            self.go_back(store, next, Cause::Timeout);
        }
    }

    /// Has a probe sent if the last one, or the last progress, is `patience` ago.
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

    /// A probe was sent.
    pub(crate) fn note_probe_sent(&mut self, now: Instant) {
        self.probe = Probe::Sent(now);
        self.timed = None;
        self.resent_at = now;
        self.timer_base = now;
    }

    /// A packet was sent again.
    #[inline]
    pub(crate) fn note_resent(&mut self, now: Instant) {
        self.resent_at = now;
    }

    /// Why packets are sent again.
    pub(crate) fn cause(&self) -> Cause {
        self.cause
    }

    /// Sends from `seq` on again.
    pub(crate) fn go_back(&mut self, store: &mut Store, seq: u64, cause: Cause) {
        match cause {
            Cause::Rnr => self.window.note_not_ready(store.outstanding()),
            Cause::Nak | Cause::Timeout => self.window.note_loss(store.outstanding()),
        }
        self.cause = cause;
        self.probe = Probe::None;
        store.rewind_to(seq);
    }

    /// The responder has sent a sequence NAK for `seq`: go-back-N, once per missing packet and
    /// round trip.
    pub(crate) fn go_back_to_lost(&mut self, now: Instant, store: &mut Store, seq: u64) {
        let is_under_way = |back: GoneBack| back.to == seq && !self.rtt.can_answer(back.at, now);
        if self.gone_back.is_some_and(is_under_way) {
            return;
        }
        // A packet that goes a second time does not tell which of its copies arrived.
        self.timed = self.gone_back.is_none_or(|back| back.to != seq).then_some(seq);
        self.gone_back = Some(GoneBack { to: seq, at: now });
        self.go_back(store, seq, Cause::Nak);
    }

    /// The responder has everything before `next`, of `psns_max` PSNs that may be stored.
    #[inline]
    pub(crate) fn note_delivered(&mut self, now: Instant, store: &Store, next: u64, psns_max: u64) {
        self.measure_recovery(now, store, next);
        self.window.note_delivered(next - store.responder_next, psns_max);
    }

    /// Under loss hardly a packet is sent exactly once, as Karn's rule demands. But the responder
    /// drops all copies of what lies behind a gap that were sent before the gap was filled: what
    /// arrives is what was sent last.
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

    /// A packet sent at `sent_at`, once, was acknowledged by name.
    #[inline]
    pub(crate) fn sample(&mut self, sent_at: Instant, now: Instant) {
        if sent_at > self.resent_at {
            self.rtt.sample(sent_at, now);
        }
    }

    /// Restarts the retransmission timer and, if this answers a probe, judges the answer.
    ///
    /// The path keeps the order: what was sent before the probe, and is not acknowledged by its
    /// answer, is lost. But a responder that was only slow answers the packets of before one after
    /// another, and the first of these answers looks like one to the probe. So the second tells (as
    /// F-RTO does, RFC 5682): when it comes soon, nothing is lost.
    pub(crate) fn note_progress(&mut self, now: Instant, store: &Store) {
        self.timer_base = now;
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

    /// How long to wait for what may follow by itself.
    pub(crate) fn grace(&self) -> Duration {
        self.rtt.smoothed().unwrap_or(GRACE_MAX).divided_by(4).min(GRACE_MAX)
    }
}
