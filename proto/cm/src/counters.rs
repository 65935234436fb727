//! Counters of a connection manager.

use longhaul_wire::mad::Attribute;

/// Why a received MAD changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Drop {
    /// Not a message of the connection manager: version, class, method or attribute.
    NotCm,
    /// Meant for another instance behind our address.
    NotOurs,
    /// A repetition of what was answered already; answered again where the standard wants it.
    Duplicate,
    /// Names a connection that we do not have.
    UnknownConnection,
    /// Names a connection of ours with another peer, or with another peer's id.
    WrongPeer,
    /// A DREQ with a QPN that is not the connection's.
    WrongQpn,
    /// Makes no sense in the connection's state.
    UnexpectedInState,
    /// A REQ or SIDR_REQ for a service that nobody listens to.
    NoListener,
    /// A REQ or SIDR_REQ beyond the listener's backlog; the peer retransmits it.
    BacklogFull,
    /// A REQ or SIDR_REQ beyond the bounds on what is half-open or open; the peer retransmits it.
    TableFull,
    /// A REQ with a path or transport that we cannot serve, a REQ for a datagram service or a
    /// SIDR_REQ for a connected one; it was rejected.
    Unacceptable,
    /// A REQ or REP with the QPN or id of a live connection; it was rejected as stale or duplicate.
    Stale,
    /// A message that is ignored, as Linux does on RoCE: LAP, APR.
    Unsupported,
}

impl Drop {
    /// Number of reasons.
    pub const COUNT: usize = 13;

    /// Every reason, in the order of the counters.
    pub const ALL: [Drop; Self::COUNT] = [
        Drop::NotCm,
        Drop::NotOurs,
        Drop::Duplicate,
        Drop::UnknownConnection,
        Drop::WrongPeer,
        Drop::WrongQpn,
        Drop::UnexpectedInState,
        Drop::NoListener,
        Drop::BacklogFull,
        Drop::TableFull,
        Drop::Unacceptable,
        Drop::Stale,
        Drop::Unsupported,
    ];

    /// Name in counters and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Drop::NotCm => "not_cm",
            Drop::NotOurs => "not_ours",
            Drop::Duplicate => "duplicate",
            Drop::UnknownConnection => "unknown_connection",
            Drop::WrongPeer => "wrong_peer",
            Drop::WrongQpn => "wrong_qpn",
            Drop::UnexpectedInState => "unexpected_in_state",
            Drop::NoListener => "no_listener",
            Drop::BacklogFull => "backlog_full",
            Drop::TableFull => "table_full",
            Drop::Unacceptable => "unacceptable",
            Drop::Stale => "stale",
            Drop::Unsupported => "unsupported",
        }
    }
}

/// Free-running counts of one [`crate::ConnectionManager`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// MADs received, dropped ones included.
    pub received: u64,
    /// MADs sent, repetitions included.
    pub sent: u64,
    /// REQ, REP, DREQ and SIDR_REQ retransmitted because no answer came in time.
    pub retransmitted: u64,
    /// Replies to unknown peers and to duplicates, dropped because too many waited.
    pub replies_dropped: u64,
    /// Connections that got established.
    pub established: u64,
    /// Handshakes, and requests for datagram services, that the peer rejected.
    pub rejected: u64,
    /// Handshakes, and requests for datagram services, that got no answer in time.
    pub unreachable: u64,
    /// Datagram services that a peer named the QP of.
    pub resolved: u64,
    /// Established connections that ended.
    pub disconnected: u64,
    sent_by: [u64; 11],
    received_by: [u64; 11],
    dropped: [u64; Drop::COUNT],
}

impl Counters {
    /// MADs dropped for `reason`.
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.dropped[reason as usize]
    }

    /// Messages `attribute` sent.
    pub fn sent_of(&self, attribute: Attribute) -> u64 {
        self.sent_by[index(attribute)]
    }

    /// Messages `attribute` received.
    pub fn received_of(&self, attribute: Attribute) -> u64 {
        self.received_by[index(attribute)]
    }

    pub(crate) fn count_drop(&mut self, reason: Drop) {
        self.dropped[reason as usize] += 1;
    }

    pub(crate) fn count_sent(&mut self, attribute: Attribute) {
        self.sent += 1;
        self.sent_by[index(attribute)] += 1;
    }

    pub(crate) fn count_received(&mut self, attribute: Attribute) {
        self.received_by[index(attribute)] += 1;
    }
}

fn index(attribute: Attribute) -> usize {
    attribute as usize - Attribute::Req as usize
}
