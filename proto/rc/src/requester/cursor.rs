//! A requester's position in its queue.

/// The next packet to send. Going back moves it to the oldest unacknowledged packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    /// PSN of the next packet, unwrapped.
    pub(super) next: u64,
    /// Work request of that packet.
    pub(super) current: u64,
    /// READs and atomics before `current` that await responses.
    pub(super) reads: u32,
    /// PSN behind the latest packet with an AckReq: an ACK is outstanding if and only if
    /// `una < asked`.
    pub(super) asked: u64,
    /// Packets sent since then.
    pub(super) since_ack_request: u32,
}

impl Cursor {
    /// Position at the start of a connection whose first PSN is `first`.
    pub(super) fn start(first: u64, ack_request_phase: u32) -> Self {
        Cursor {
            next: first,
            asked: first,
            since_ack_request: ack_request_phase,
            ..Cursor::default()
        }
    }

    /// Position at PSN `una` of work request `done`, with nothing behind it sent.
    #[inline]
    pub(super) fn at(una: u64, done: u64) -> Self {
        Cursor { next: una, current: done, reads: 0, asked: una, since_ack_request: 0 }
    }
}
