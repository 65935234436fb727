//! The pseudo-ACKs of a flow: how far its requester was acknowledged, and when the next is due.

use longhaul_units::{Duration, Instant};

/// What a requester was acknowledged, and which acknowledgement it waits for.
///
/// `begins_at <= to`; `to` and `messages` never fall but with a new value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acks {
    /// The first PSN: nothing before it is acknowledged.
    begins_at: u64,
    /// The PSN behind the last that was acknowledged.
    to: u64,
    /// Messages that were acknowledged.
    messages: u64,
    /// The requester waits for an ACK of everything before this PSN.
    wanted_to: u64,
    /// The ACK whose delay is measured, and since when the requester waits for it.
    measured: Option<(u64, Instant)>,
    /// Packets stored since the last ACK.
    since_ack: u32,
    /// The last ACK is sent again.
    again: bool,
    /// Smoothed time from a wish to its ACK.
    delay: Option<Duration>,
}

impl Acks {
    /// Of a flow that begins at `psn`.
    pub(crate) fn new(psn: u64) -> Self {
        Acks {
            begins_at: psn,
            to: psn,
            messages: 0,
            wanted_to: psn,
            measured: None,
            since_ack: 0,
            again: false,
            delay: None,
        }
    }

    /// Of a flow that begins anew at `psn`.
    pub(crate) fn restarted(&self, psn: u64) -> Self {
        Acks { delay: self.delay, ..Acks::new(psn) }
    }

    /// Of a flow that was learnt from `begins_at` on, and whose requester had its ACK of `messages`
    /// before `to` from the responder.
    pub(crate) fn taken_over(&self, begins_at: u64, to: u64, messages: u64) -> Self {
        Acks { begins_at, messages, ..self.restarted(to) }
    }

    /// Of a flow that acknowledges nothing further.
    pub(crate) fn afresh(&self) -> Self {
        Acks { measured: None, since_ack: 0, again: false, ..*self }
    }

    #[inline]
    pub(crate) fn begins_at(&self) -> u64 {
        self.begins_at
    }

    #[inline]
    pub(crate) fn to(&self) -> u64 {
        self.to
    }

    #[inline]
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    pub(crate) fn delay(&self) -> Option<Duration> {
        self.delay
    }

    /// A packet was stored, the last before `end`. An ACK is wanted if it asks for one, or is the
    /// last of `every`.
    #[inline]
    pub(crate) fn note_stored(&mut self, now: Instant, end: u64, asks: bool, every: u32) {
        self.since_ack += 1;
        if asks || self.since_ack >= every {
            self.wanted_to = end;
            if self.measured.is_none_or(|(to, _)| to <= self.to) {
                self.measured = Some((end, now));
            }
        }
    }

    /// The requester waits for an ACK of everything before `to`.
    #[inline]
    pub(crate) fn want(&mut self, to: u64) {
        self.wanted_to = self.wanted_to.max(to);
    }

    /// The last ACK is to be sent again.
    #[inline]
    pub(crate) fn repeat(&mut self) {
        self.again = true;
    }

    /// True if an ACK is due, where everything before `frontier` may be acknowledged.
    #[inline]
    pub(crate) fn is_due(&self, frontier: u64) -> bool {
        (self.again && frontier > self.begins_at) || self.wanted_to.min(frontier) > self.to
    }

    /// The requester has an acknowledgement of everything before `to`.
    #[inline]
    pub(crate) fn raise(&mut self, to: u64) {
        self.to = self.to.max(to);
    }

    /// The requester has an acknowledgement of everything before `to`, and of so many messages.
    #[inline]
    pub(crate) fn raise_with(&mut self, to: u64, messages: u64) {
        self.raise(to);
        self.messages = self.messages.max(messages);
    }

    /// An ACK or NAK for everything before `to` was sent.
    #[inline]
    pub(crate) fn note_sent(&mut self, to: u64, messages: u64) {
        self.raise_with(to, messages);
        self.again = false;
        self.since_ack = 0;
    }

    /// How long the requester has waited for an ACK of everything before `to`, if that is measured.
    #[inline]
    pub(crate) fn measure_delay(&mut self, now: Instant, to: u64) -> Option<Duration> {
        let (_, since) = self.measured.take_if(|(wanted, _)| *wanted <= to)?;
        let delay = now.since(since);
        let smoothed = self.delay.map(|before| before.times(7).divided_by(8) + delay.divided_by(8));
        self.delay = Some(smoothed.unwrap_or(delay));
        Some(delay)
    }
}
