//! Rate limiter of a QP: the program's limit, and the rate that congestion control allows.

use crate::Pacer;
use crate::dcqcn::{CnpOutcome, Dcqcn, ReactionPoint};
use longhaul_units::{BitRate, Duration, Instant};

/// Burst in bytes if the program specifies none, or congestion limits the QP: 15 full-size frames.
const BURST_BYTES: u64 = 65_536;

/// How late the sending loop may process a waiting packet without losing rate, if the program
/// leaves the burst to the device. On shared cores a runnable thread can wait for a millisecond.
const LATENESS: Duration = Duration::from_ms(1);

/// The limit that a program sets for a QP: `ibv_modify_qp_rate_limit`, or `rate_limit` of
/// `ibv_modify_qp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    rate: BitRate,
    /// Maximum credit while nothing waits to be sent.
    burst_bytes: u64,
    /// Maximum credit while a packet waits for a loop that is late.
    late_bytes: u64,
}

impl RateLimit {
    /// From the fields of `struct ibv_qp_rate_limit_attr`, in kbit/s and bytes. `None` if
    /// `rate_limit` is 0, which lifts the limit.
    ///
    /// The rate counts bytes on the wire, as every port rate does ([`crate::wire_bytes`]: headers,
    /// FCS, preamble and gap), so that a limit equal to the port's rate has no effect. Goodput is
    /// lower by the share of the headers: WRITEs over IPv4 reach 98.0 % with a path MTU of 4096,
    /// and 92.6 % with 1024.
    ///
    /// `max_burst_sz` strictly bounds a back-to-back burst: a sender that is called late loses the
    /// rate of the time that its burst did not cover. 0 leaves it to the device: 64 KiB after a
    /// pause, and up to a millisecond's worth of the rate to make up for a late call.
    /// `typical_pkt_sz` is for devices that pace by an assumed size; it has no effect here, because
    /// each packet is counted with its own size.
    pub fn from_verbs(rate_limit: u32, max_burst_sz: u32, _typical_pkt_sz: u16) -> Option<Self> {
        let rate = BitRate::from_bps(u64::from(rate_limit) * 1000)?;
        let (burst_bytes, late_bytes) = match max_burst_sz {
            0 => (BURST_BYTES, rate.bytes_in(LATENESS).max(BURST_BYTES)),
            bytes => (bytes.into(), bytes.into()),
        };
        Some(RateLimit { rate, burst_bytes, late_bytes })
    }

    /// The rate, in bits per second on the wire.
    pub fn rate(&self) -> BitRate {
        self.rate
    }
}

/// Limits a QP's rate to the lower of the program's limit and the rate that congestion control
/// allows, with one pacer. A QP without a limit has a null pointer here.
///
/// The owner calls [`RateLimiter::ready_at`] before it sends a packet for the QP, and reports each
/// packet sent to [`RateLimiter::take`]. It does not report packets that are exempt
/// (acknowledgements, CNPs).
#[derive(Clone, Debug, Default)]
pub struct RateLimiter {
    active: Option<Box<Active>>,
}

#[derive(Clone, Debug)]
struct Active {
    limit: Option<RateLimit>,
    reaction: ReactionPoint,
    /// Congestion-controlled rate for which the pacer is configured.
    paced_to: Option<BitRate>,
    pacer: Pacer,
    /// A packet has been told to wait, and nothing was sent since.
    is_waiting: bool,
    sent_at: Instant,
}

impl RateLimiter {
    /// A limiter without a limit.
    pub const fn new() -> Self {
        RateLimiter { active: None }
    }

    /// Whether anything limits the QP, as of the last call.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// The rate in force as of the last call, in bits per second on the wire; `None`: the port's.
    pub fn rate(&self) -> Option<BitRate> {
        self.active.as_ref().map(|active| active.pacer.rate())
    }

    /// Sets or lifts the program's limit. The congestion-controlled rate is unaffected.
    pub fn set_limit(&mut self, now: Instant, limit: Option<RateLimit>) {
        match &mut self.active {
            Some(active) => {
                active.limit = limit;
                if active.limits().is_none() {
                    self.active = None;
                } else {
                    active.retune(now);
                }
            }
            None => {
                self.active = limit.map(|limit| {
                    let mut pacer = Pacer::new(limit.rate, limit.late_bytes);
                    pacer.forfeit(now, limit.burst_bytes);
                    Active::boxed(now, Some(limit), ReactionPoint::new(), pacer)
                });
            }
        }
    }

    /// Handles a CNP for this QP.
    pub fn on_cnp(&mut self, now: Instant, dcqcn: &Dcqcn) -> CnpOutcome {
        if let Some(active) = &mut self.active {
            let outcome = active.reaction.on_cnp(now, dcqcn);
            active.follow(now);
            return outcome;
        }
        let mut reaction = ReactionPoint::new();
        let outcome = reaction.on_cnp(now, dcqcn);
        if let Some(rate) = reaction.rate() {
            let mut pacer = Pacer::new(rate, BURST_BYTES);
            // The QP was sending at line rate, so there is no credit.
            pacer.take(now, BURST_BYTES);
            self.active = Some(Active::boxed(now, None, reaction, pacer));
        }
        outcome
    }

    /// Returns `now` if a packet may be sent, and otherwise the time at which to ask again: when a
    /// packet may be sent, or when the rate changes if that is earlier.
    #[inline]
    pub fn ready_at(&mut self, now: Instant, dcqcn: &Dcqcn) -> Instant {
        if self.active.is_none() { now } else { self.limited_ready_at(now, dcqcn) }
    }

    fn limited_ready_at(&mut self, now: Instant, dcqcn: &Dcqcn) -> Instant {
        let Some(active) = &mut self.active else { return now };
        active.reaction.handle_timeout(now, dcqcn);
        if active.limits().is_none() {
            self.active = None;
            return now;
        }
        active.follow(now);
        if !active.is_waiting && now.since(active.sent_at) >= LATENESS {
            let burst_bytes = active.limit.map_or(BURST_BYTES, |limit| limit.burst_bytes);
            active.pacer.forfeit(now, burst_bytes);
        }
        let ready = active.pacer.ready_at(now);
        if ready <= now {
            return ready;
        }
        active.is_waiting = true;
        match active.reaction.poll_timeout(dcqcn) {
            // A change before `now` results from a clock that stepped back.
            Some(change) if change > now => ready.min(change),
            _ => ready,
        }
    }

    /// Counts `wire_bytes` ([`crate::wire_bytes`]) as sent at `now`.
    #[inline]
    pub fn take(&mut self, now: Instant, wire_bytes: u64, dcqcn: &Dcqcn) {
        if let Some(active) = &mut self.active {
            active.pacer.take(now, wire_bytes);
            active.is_waiting = false;
            active.sent_at = now;
            active.reaction.on_sent(now, wire_bytes, dcqcn);
            if active.limits().is_none() {
                self.active = None;
            } else {
                active.follow(now);
            }
        }
    }
}

impl Active {
    fn boxed(
        now: Instant,
        limit: Option<RateLimit>,
        reaction: ReactionPoint,
        pacer: Pacer,
    ) -> Box<Self> {
        let paced_to = reaction.rate();
        Box::new(Active { limit, reaction, paced_to, pacer, is_waiting: false, sent_at: now })
    }

    /// The rate in force and the maximum credit; `None` without a limit.
    fn limits(&self) -> Option<(BitRate, u64)> {
        match (self.reaction.rate(), self.limit) {
            (None, None) => None,
            (None, Some(limit)) => Some((limit.rate, limit.late_bytes)),
            (Some(rate), None) => Some((rate, BURST_BYTES)),
            (Some(rate), Some(limit)) => {
                Some((rate.min(limit.rate), limit.burst_bytes.min(BURST_BYTES)))
            }
        }
    }

    /// Retunes the pacer if congestion has changed the rate.
    #[inline]
    fn follow(&mut self, now: Instant) {
        if self.reaction.rate() != self.paced_to {
            self.retune(now);
        }
    }

    fn retune(&mut self, now: Instant) {
        self.paced_to = self.reaction.rate();
        if let Some((rate, burst_bytes)) = self.limits() {
            self.pacer.retune(now, rate, burst_bytes);
        }
    }
}
