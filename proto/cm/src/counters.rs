//! Counters of a connection manager.

use longhaul_wire::mad::Attribute;

longhaul_counters::drops! {
    /// Why a received MAD had no effect.
    pub enum DropReason {
        /// Not a message of the connection manager: version, class, method or attribute.
        NotCm = "not_cm",
        /// For another instance behind our address.
        NotOurs = "not_ours",
        /// A duplicate; answered again where the standard requires it.
        Duplicate = "duplicate",
        /// For an unknown connection.
        UnknownConnection = "unknown_connection",
        /// For a connection of ours with another peer, or with another peer's id.
        WrongPeer = "wrong_peer",
        /// A DREQ with a QPN other than the connection's.
        WrongQpn = "wrong_qpn",
        /// Invalid in the connection's state.
        UnexpectedInState = "unexpected_in_state",
        /// A REQ or SIDR_REQ for a service without a listener.
        NoListener = "no_listener",
        /// A REQ or SIDR_REQ beyond the listener's backlog; the peer retransmits it.
        BacklogFull = "backlog_full",
        /// A REQ or SIDR_REQ beyond the bounds on open or half-open connections; the peer
        /// retransmits it.
        TableFull = "table_full",
        /// A REQ with a path or transport that we cannot serve, a REQ for a datagram service, or a
        /// SIDR_REQ for a connected one; it was rejected.
        Unacceptable = "unacceptable",
        /// A REQ or REP with the QPN or id of a live connection; it was rejected as stale or
        /// duplicate.
        Stale = "stale",
        /// A message that is ignored, as in Linux on RoCE: LAP, APR.
        Unsupported = "unsupported",
    }
}

longhaul_counters::counters! {
    /// Free-running counts of one [`crate::ConnectionManager`].
    pub struct Counters {
        /// MADs received, dropped ones included.
        received,
        /// MADs sent, retransmissions included.
        sent,
        /// REQ, REP, DREQ and SIDR_REQ retransmitted because no answer came in time.
        retransmitted,
        /// Replies to unknown peers and to duplicates that were dropped because too many waited.
        replies_dropped,
        /// Connections established.
        established,
        /// Handshakes and requests for datagram services that the peer rejected.
        rejected,
        /// Handshakes and requests for datagram services without an answer in time.
        unreachable,
        /// Datagram services whose QP a peer has told.
        resolved,
        /// Established connections that ended.
        disconnected,
        ;
        /// MADs that had no effect, by reason.
        drops: Drops,
        /// MADs sent, by attribute.
        sent_by: ByAttribute,
        /// MADs received, by attribute.
        received_by: ByAttribute,
    }
}

impl Counters {
    pub(crate) fn count_sent(&mut self, attribute: Attribute) {
        self.sent += 1;
        self.sent_by.0[index(attribute)] += 1;
    }

    pub(crate) fn count_received(&mut self, attribute: Attribute) {
        self.received_by.0[index(attribute)] += 1;
    }
}

/// MADs by their attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByAttribute([u64; 11]);

impl ByAttribute {
    /// MADs with `attribute`.
    pub fn get(&self, attribute: Attribute) -> u64 {
        self.0[index(attribute)]
    }
}

fn index(attribute: Attribute) -> usize {
    attribute as usize - Attribute::Req as usize
}
