//! The pseudo-ACKs of a flow: what its requester was acknowledged, and when the next ACK is due.

use longhaul_units::{Duration, Instant};

/// What a requester was acknowledged, and the ACK that it waits for.
///
/// `begins_at <= to`; `to` and `messages` decrease only in a new value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acks {
    /// First PSN of the flow; no PSN before it was acknowledged.
    begins_at: u64,
    /// The PSN behind the last acknowledged one.
    to: u64,
    /// Acknowledged messages.
    messages: u64,
    /// The requester waits for an ACK of everything before this PSN.
    wanted_to: u64,
    /// The ACK whose delay is being measured, and when the requester began to wait for it.
    measured: Option<(u64, Instant)>,
    /// Packets stored since the last ACK.
    since_ack: u32,
    /// The last ACK must be sent once more.
    again: bool,
    /// Smoothed time from the wish for an ACK to its transmission.
    delay: Option<Duration>,
}

impl Acks {
    /// For a flow that begins at `psn`.
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

    /// For a flow that restarts at `psn`.
    pub(crate) fn restarted(&self, psn: u64) -> Self {
        Acks { delay: self.delay, ..Acks::new(psn) }
    }

    /// For a flow that was learnt from `begins_at` on, and whose responder has acknowledged
    /// `messages` messages before `to` to the requester.
    pub(crate) fn taken_over(&self, begins_at: u64, to: u64, messages: u64) -> Self {
        Acks { begins_at, messages, ..self.restarted(to) }
    }

    /// For a flow that acknowledges nothing further.
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

    /// Notes that a packet was stored, the last before `end`. An ACK is wanted if the packet asks
    /// for one, or if it is the `every`th since the last ACK.
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

    /// Notes that the requester waits for an ACK of everything before `to`.
    #[inline]
    pub(crate) fn want(&mut self, to: u64) {
        self.wanted_to = self.wanted_to.max(to);
    }

    /// Has the last ACK sent once more.
    #[inline]
    pub(crate) fn repeat(&mut self) {
        self.again = true;
    }

    /// True if an ACK is due, given that everything before `frontier` may be acknowledged.
    #[inline]
    pub(crate) fn is_due(&self, frontier: u64) -> bool {
        (self.again && frontier > self.begins_at) || self.wanted_to.min(frontier) > self.to
    }

    /// Notes that the requester has an acknowledgement of everything before `to`.
    #[inline]
    pub(crate) fn raise(&mut self, to: u64) {
        self.to = self.to.max(to);
    }

    /// Same as [`Acks::raise`], with the number of messages that it acknowledges.
    #[inline]
    pub(crate) fn raise_with(&mut self, to: u64, messages: u64) {
        self.raise(to);
        self.messages = self.messages.max(messages);
    }

    /// Notes that an ACK or NAK for everything before `to` was sent.
    #[inline]
    pub(crate) fn note_sent(&mut self, to: u64, messages: u64) {
        self.raise_with(to, messages);
        self.again = false;
        self.since_ack = 0;
    }

    /// How long the requester has waited for an ACK of everything before `to`, if measured.
    #[inline]
    pub(crate) fn measure_delay(&mut self, now: Instant, to: u64) -> Option<Duration> {
        let (_, since) = self.measured.take_if(|(wanted, _)| *wanted <= to)?;
        let delay = now.since(since);
        let smoothed = self.delay.map(|before| before.times(7).divided_by(8) + delay.divided_by(8));
        self.delay = Some(smoothed.unwrap_or(delay));
        Some(delay)
    }
}
