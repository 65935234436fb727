//! State of each configured peer: the handshake in progress, and the keys in use.

use crate::addresses::TRIES;
use crate::config::PeerConfig;
use crate::format::{Init, NOISE_RESPONSE_LEN, Response, Terms};
use crate::noise::{Initiator, Keys};
use crate::session::{Sessions, Way};
use crate::{NoKeys, PeerStatus, PublicKey, Trouble};
use longhaul_node::Deadline;
use longhaul_units::{Duration, Instant};
use std::mem;

/// Time allowed for the far box to prove that it has the keys of a handshake that it started.
const CONFIRM_WITHIN: Duration = Duration::from_ms(10_000);
/// Minimum interval between notices of unknown keys that are honoured, for each peer.
const NOTICE_INTERVAL: Duration = Duration::from_ms(1000);

/// A handshake that this box started: its INIT, and the state that reads the RESPONSE.
pub(crate) struct Initiation {
    /// Index reserved for the keys.
    pub(crate) local: u32,
    pub(crate) nonce: u64,
    pub(crate) noise: Initiator,
    /// Body of the INIT, for retransmission.
    pub(crate) body: [u8; Init::LEN],
    pub(crate) way: Way,
    /// The messages are sealed with the keys that they replace.
    pub(crate) is_inside: bool,
}

/// First bytes of an INIT, which no two handshakes share: its ephemeral key.
pub(crate) type InitMark = [u8; 32];

enum Handshake {
    /// None in progress.
    Idle,
    /// This box sent an INIT, `tries` times so far, and waits for the RESPONSE.
    Initiated { init: Initiation, tries: u32, next_at: Instant },
    /// This box answered the peer's INIT with `mark`. The peer has to prove by `until`, with a
    /// sealed datagram, that it has the keys `local`.
    Responded { local: u32, until: Instant, mark: InitMark, response: [u8; Response::LEN] },
}

enum InUse {
    /// No keys; the reason, once the peer was found.
    Nothing { why: Option<NoKeys> },
    /// The keys `local` seal.
    Keys {
        local: u32,
        /// The replaced keys, which open datagrams until this time.
        previous: Option<(u32, Instant)>,
        /// Earliest start of a handshake that replaces the keys.
        rekey_from: Instant,
    },
}

/// Result of an INIT's timer.
pub(crate) enum InitTimer {
    /// Transmit the INIT, as attempt number `attempt` from 0, sealed with the keys `inside`.
    Transmit { attempt: u32, way: Way, inside: Option<u32>, nonce: u64, body: [u8; Init::LEN] },
    /// The peer answered no attempt. The handshake was abandoned.
    Unanswered { way: Way, was_inside: bool },
}

/// A configured far box.
pub(crate) struct Peer {
    config: PeerConfig,
    handshake: Handshake,
    in_use: InUse,
    /// Earliest time at which a notice of unknown keys is honoured.
    notices_from: Instant,
    /// Handshakes completed.
    completed: u64,
}

impl Peer {
    pub(crate) fn new(config: PeerConfig) -> Self {
        Peer {
            config,
            handshake: Handshake::Idle,
            in_use: InUse::Nothing { why: None },
            notices_from: Instant::ZERO,
            completed: 0,
        }
    }

    pub(crate) fn config(&self) -> &PeerConfig {
        &self.config
    }

    /// Index of the keys that seal.
    #[inline]
    pub(crate) fn sealing_keys(&self) -> Option<u32> {
        match self.in_use {
            InUse::Nothing { .. } => None,
            InUse::Keys { local, .. } => Some(local),
        }
    }

    pub(crate) fn status(&self, now: Instant, sessions: &Sessions) -> PeerStatus {
        let keys = self.sealing_keys().and_then(|local| sessions.get(local));
        PeerStatus {
            name: self.config.name.clone(),
            public_key: self.config.public_key,
            keys: keys.map(|session| session.status(now)),
            is_shaking_hands: matches!(self.handshake, Handshake::Initiated { .. }),
            handshakes: self.completed,
        }
    }

    pub(crate) fn trouble(&self) -> Option<Trouble> {
        match self.in_use {
            InUse::Nothing { why } => {
                Some(Trouble::Peer { name: self.config.name.clone(), why: why? })
            }
            InUse::Keys { .. } => None,
        }
    }

    /// Notes the reason why there are no keys, unless there are, or one is already noted.
    pub(crate) fn note_trouble(&mut self, reason: NoKeys) {
        if let InUse::Nothing { why } = &mut self.in_use {
            why.get_or_insert(reason);
        }
    }

    pub(crate) fn is_in_handshake(&self) -> bool {
        !matches!(self.handshake, Handshake::Idle)
    }

    /// `true` if a handshake that replaces the keys in use may start.
    pub(crate) fn may_rekey(&self, now: Instant) -> bool {
        let is_time = |in_use: &InUse| match in_use {
            InUse::Nothing { .. } => false,
            InUse::Keys { rekey_from, .. } => *rekey_from <= now,
        };
        !self.is_in_handshake() && is_time(&self.in_use)
    }

    /// `true` if a notice of unknown keys is honoured now. The next ones are not, for a while.
    pub(crate) fn take_notice(&mut self, now: Instant) -> bool {
        let is_honoured = self.notices_from <= now;
        if is_honoured {
            self.notices_from = now + NOTICE_INTERVAL;
        }
        is_honoured
    }

    /// Starts a handshake, none of which is in progress. Its INIT is due at once.
    pub(crate) fn initiate(&mut self, now: Instant, init: Initiation) {
        debug_assert!(!self.is_in_handshake());
        self.handshake = Handshake::Initiated { init, tries: 0, next_at: now };
    }

    /// Evaluates the timer of the INIT, which is transmitted `every` so often. If no attempt was
    /// answered, the keys in use are not replaced for `pause`.
    pub(crate) fn init_timer(
        &mut self,
        now: Instant,
        every: Duration,
        pause: Duration,
        sessions: &mut Sessions,
    ) -> Option<InitTimer> {
        let in_use = self.sealing_keys();
        let Handshake::Initiated { init, tries, next_at } = &mut self.handshake else {
            return None;
        };
        if *next_at > now {
            return None;
        }
        let &mut Initiation { nonce, body, way, is_inside, .. } = init;
        // A forged response is no reason while the true one may arrive.
        let trouble = match init.noise.has_refused() {
            true => NoKeys::PresharedKey,
            false => NoKeys::Unanswered,
        };
        if is_inside && in_use.is_none() {
            // The keys to be replaced have expired.
            self.abandon(sessions);
            return None;
        }
        if *tries == TRIES {
            self.abandon(sessions);
            if let InUse::Keys { rekey_from, .. } = &mut self.in_use {
                *rekey_from = now + pause;
            }
            if !is_inside {
                self.note_trouble(trouble);
            }
            return Some(InitTimer::Unanswered { way, was_inside: is_inside });
        }
        let attempt = *tries;
        *tries += 1;
        *next_at = now + every;
        let inside = in_use.filter(|_| is_inside);
        Some(InitTimer::Transmit { attempt, way, inside, nonce, body })
    }

    /// Abandons a handshake that this box started.
    pub(crate) fn abandon(&mut self, sessions: &mut Sessions) {
        if let Handshake::Initiated { init, .. } = &self.handshake {
            sessions.remove(init.local);
            self.handshake = Handshake::Idle;
        }
    }

    /// Abandons a handshake whose messages are sealed: the peer has lost the keys that open them.
    pub(crate) fn abandon_sealed(&mut self, sessions: &mut Sessions) {
        if matches!(&self.handshake, Handshake::Initiated { init, .. } if init.is_inside) {
            self.abandon(sessions);
        }
    }

    /// `true` if this end's handshake continues and the peer's is dropped, when both started at
    /// once. The greater public key's continues, unless only one of them is sealed with keys: the
    /// other end may have lost those.
    pub(crate) fn is_ours_to_finish(&self, own: &PublicKey, is_theirs_inside: bool) -> bool {
        match &self.handshake {
            Handshake::Idle | Handshake::Responded { .. } => false,
            Handshake::Initiated { init, .. } if init.is_inside != is_theirs_inside => {
                is_theirs_inside
            }
            Handshake::Initiated { .. } => *own > self.config.public_key,
        }
    }

    /// Ends the handshake in progress, because the peer has started another. The peer had the
    /// RESPONSE to its former one for `patience`, or it does not continue after a RESPONSE.
    pub(crate) fn supersede(&mut self, now: Instant, patience: Duration, sessions: &mut Sessions) {
        match mem::replace(&mut self.handshake, Handshake::Idle) {
            Handshake::Idle => {}
            Handshake::Initiated { init, .. } => sessions.remove(init.local),
            Handshake::Responded { local, until, .. } => {
                sessions.remove(local);
                if until + patience <= now + CONFIRM_WITHIN {
                    self.note_trouble(NoKeys::Unfinished);
                }
            }
        }
    }

    /// Has answered the INIT with `mark`, with the keys `local`.
    pub(crate) fn respond(
        &mut self,
        now: Instant,
        local: u32,
        mark: InitMark,
        response: [u8; Response::LEN],
    ) {
        debug_assert!(!self.is_in_handshake());
        self.handshake =
            Handshake::Responded { local, until: now + CONFIRM_WITHIN, mark, response };
    }

    /// The RESPONSE to the INIT with `mark`, if that was the last one answered.
    pub(crate) fn response_to(&self, mark: &InitMark) -> Option<[u8; Response::LEN]> {
        match &self.handshake {
            Handshake::Responded { mark: of, response, .. } if of == mark => Some(*response),
            _ => None,
        }
    }

    /// `true` if the peer has to prove that it has the keys `local`.
    #[inline]
    pub(crate) fn is_to_confirm(&self, local: u32) -> bool {
        matches!(&self.handshake, Handshake::Responded { local: of, .. } if *of == local)
    }

    /// `true` if a RESPONSE to this index and nonce is expected, sealed or not.
    pub(crate) fn expects_response(&self, local: u32, nonce: u64, is_inside: bool) -> bool {
        matches!(
            &self.handshake,
            Handshake::Initiated { init, .. }
                if (init.local, init.nonce, init.is_inside) == (local, nonce, is_inside)
        )
    }

    /// Processes the RESPONSE. `None` if it fails authentication; the true one may still arrive.
    pub(crate) fn finish(&mut self, message: &[u8; NOISE_RESPONSE_LEN]) -> Option<(Keys, Terms)> {
        let Handshake::Initiated { init, .. } = &mut self.handshake else { return None };
        init.noise.finish(message)
    }

    /// Completes the handshake: the keys `local` seal from now on. The former keys open for
    /// `old_for`. Returns whether there were any.
    pub(crate) fn establish(
        &mut self,
        now: Instant,
        local: u32,
        old_for: Duration,
        sessions: &mut Sessions,
    ) -> bool {
        self.handshake = Handshake::Idle;
        self.completed += 1;
        let previous = match self.in_use {
            InUse::Nothing { .. } => None,
            InUse::Keys { local: old, previous, .. } => {
                if let Some((before, _)) = previous {
                    sessions.remove(before);
                }
                Some((old, now + old_for))
            }
        };
        self.in_use = InUse::Keys { local, previous, rekey_from: now };
        previous.is_some()
    }

    /// Releases keys whose time is over.
    pub(crate) fn expire(&mut self, now: Instant, sessions: &mut Sessions) {
        if let Handshake::Responded { local, until, .. } = self.handshake
            && until <= now
        {
            sessions.remove(local);
            self.handshake = Handshake::Idle;
            self.note_trouble(NoKeys::Unfinished);
        }
        let InUse::Keys { local, previous, .. } = &mut self.in_use else { return };
        let local = *local;
        let is_over = sessions.get(local).is_none_or(|session| session.ends_at <= now);
        // Older keys end before newer ones.
        if let Some((old, _)) = previous.take_if(|(_, until)| is_over || *until <= now) {
            sessions.remove(old);
        }
        if is_over {
            sessions.remove(local);
            self.in_use = InUse::Nothing { why: None };
        }
    }

    /// Next deadline of this peer.
    pub(crate) fn deadline(&self, sessions: &Sessions) -> Option<Deadline> {
        let handshake = match &self.handshake {
            Handshake::Idle => None,
            Handshake::Initiated { next_at, .. } => {
                Some(Deadline { at: *next_at, reason: "handshake with a far box" })
            }
            Handshake::Responded { until, .. } => {
                Some(Deadline { at: *until, reason: "keys that nobody confirms" })
            }
        };
        let InUse::Keys { local, previous, .. } = &self.in_use else { return handshake };
        let previous = previous.map(|(_, at)| Deadline { at, reason: "replaced keys" });
        let session = sessions.get(*local);
        let keys = session.map(|keys| Deadline { at: keys.ends_at, reason: "the end of keys" });
        [previous, keys].into_iter().fold(handshake, Deadline::earliest)
    }
}
