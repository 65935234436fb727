//! State of each configured peer.

use crate::NoKeys;
use crate::config::PeerConfig;
use crate::format::{Init, Response};
use crate::noise::Initiator;
use crate::session::Way;
use longhaul_node::Deadline;
use longhaul_units::Instant;

/// A handshake that this box started.
pub(crate) struct Shaking {
    /// Index reserved for its keys.
    pub(crate) local: u32,
    pub(crate) nonce: u64,
    pub(crate) noise: Initiator,
    /// The INIT, for retransmission.
    pub(crate) body: [u8; Init::LEN],
    pub(crate) way: Way,
    /// Its messages are sealed with the keys that it replaces.
    pub(crate) is_inside: bool,
    pub(crate) tries: u32,
    pub(crate) next_at: Instant,
}

/// Keys of a handshake that the peer started, until the peer proves that it has them.
pub(crate) struct Pending {
    pub(crate) local: u32,
    pub(crate) until: Instant,
    /// Identifies the INIT that they answer; the RESPONSE to it is kept for retransmission.
    pub(crate) noise: [u8; 32],
    pub(crate) response: [u8; Response::LEN],
}

/// A configured far box.
pub(crate) struct Peer {
    pub(crate) config: PeerConfig,
    /// Keys in use for sealing.
    pub(crate) current: Option<u32>,
    /// The previous keys, accepted until this time.
    pub(crate) previous: Option<(u32, Instant)>,
    pub(crate) pending: Option<Pending>,
    pub(crate) shaking: Option<Shaking>,
    /// Earliest time of the next handshake that replaces keys.
    pub(crate) quiet_until: Instant,
    /// Earliest time at which a notice of unknown keys is honoured.
    pub(crate) deaf_until: Instant,
    pub(crate) handshakes: u64,
    /// Reason why there are no keys.
    pub(crate) trouble: Option<NoKeys>,
}

impl Peer {
    pub(crate) fn new(config: PeerConfig) -> Self {
        Peer {
            config,
            current: None,
            previous: None,
            pending: None,
            shaking: None,
            quiet_until: Instant::ZERO,
            deaf_until: Instant::ZERO,
            handshakes: 0,
            trouble: None,
        }
    }

    /// Notes the reason why there are no keys, unless one is already noted.
    pub(crate) fn note_trouble(&mut self, why: NoKeys) {
        if self.current.is_none() {
            self.trouble.get_or_insert(why);
        }
    }

    /// Next deadline of this peer; `ends_at` is the end of the keys in use.
    pub(crate) fn deadline(&self, ends_at: Option<Instant>) -> Option<Deadline> {
        let at = |at: Option<Instant>, reason| at.map(|at| Deadline { at, reason });
        [
            at(self.shaking.as_ref().map(|shaking| shaking.next_at), "handshake with a far box"),
            at(self.pending.as_ref().map(|pending| pending.until), "keys that nobody confirms"),
            at(self.previous.map(|(_, until)| until), "replaced keys"),
            at(ends_at, "the end of keys"),
        ]
        .into_iter()
        .fold(None, Deadline::earliest)
    }
}
