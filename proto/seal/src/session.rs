//! Keys with one peer, and the table of all of them.

use crate::addresses::AddressKey;
use crate::cipher::{Aead, Cipher};
use crate::config::{Config, PATHS_MAX};
use crate::noise::Keys;
use crate::status::KeysStatus;
use crate::window::Window;
use longhaul_node::Side;
use longhaul_units::{Duration, Instant};
use longhaul_wire::Path;

/// Keys expire at this multiple of the age or volume at which they should be replaced.
const ENDS_AT: u64 = 4;

/// Route of handshake messages to a peer: that of the traffic for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Path, counted from 0.
    pub(crate) path: Side,
    pub(crate) headers: Path,
}

/// Keys of both directions, and their use.
pub(crate) struct Session {
    /// This box's index of them, and the far box's.
    pub(crate) local: u32,
    pub(crate) remote: u32,
    /// Index of the peer in the configuration.
    pub(crate) peer: usize,
    pub(crate) is_initiator: bool,
    cipher: Cipher,
    pub(crate) sealing: Aead,
    pub(crate) opening: Aead,
    /// Next number of each path.
    numbers: Box<[u64]>,
    /// Replay window of each of the far box's paths.
    windows: [Option<Window>; PATHS_MAX as usize + 1],
    window: u32,
    made_at: Instant,
    pub(crate) rekey_at: Instant,
    pub(crate) ends_at: Instant,
    rekey_bytes: u64,
    bytes_sealed: u64,
    bytes_opened: u64,
    /// Source of the last datagram, which is known to be behind the peer.
    pub(crate) source: Option<AddressKey>,
}

/// Result of a handshake.
pub(crate) struct Agreed {
    pub(crate) local: u32,
    pub(crate) remote: u32,
    pub(crate) peer: usize,
    pub(crate) is_initiator: bool,
    pub(crate) cipher: Cipher,
    pub(crate) keys: Keys,
}

impl Session {
    pub(crate) fn new(now: Instant, config: &Config, agreed: Agreed) -> Option<Self> {
        let Agreed { local, remote, peer, is_initiator, cipher, mut keys } = agreed;
        let to_responder = Aead::new(cipher, &mut keys.to_responder)?;
        let to_initiator = Aead::new(cipher, &mut keys.to_initiator)?;
        let (sealing, opening) =
            if is_initiator { (to_responder, to_initiator) } else { (to_initiator, to_responder) };
        // The initiator replaces the keys; the responder does so if that is overdue by a quarter.
        let patience = |value: u64| if is_initiator { value } else { value + value / 4 };
        Some(Session {
            local,
            remote,
            peer,
            is_initiator,
            cipher,
            sealing,
            opening,
            numbers: vec![0; usize::from(config.paths)].into(),
            windows: Default::default(),
            window: config.window,
            made_at: now,
            rekey_at: now + Duration::from_ps(patience(config.rekey_after.as_ps())),
            ends_at: now + config.rekey_after.times(ENDS_AT),
            rekey_bytes: patience(config.rekey_bytes),
            bytes_sealed: 0,
            bytes_opened: 0,
            source: None,
        })
    }

    /// Returns an unused number for a datagram of `len` bytes on `path`. `None` if the keys have
    /// expired.
    #[inline]
    pub(crate) fn number(&mut self, now: Instant, path: Side, len: usize) -> Option<u64> {
        if self.is_over(now) {
            return None;
        }
        self.bytes_sealed += len as u64;
        let number = self.numbers[path];
        self.numbers[path] += 1;
        Some(number)
    }

    /// Datagrams sealed on `path`.
    pub(crate) fn sent(&self, path: Side) -> u64 {
        self.numbers.get(path).copied().unwrap_or(0)
    }

    /// `true` if `number` has not arrived on the far box's `path`.
    #[inline]
    pub(crate) fn is_fresh(&self, path: u8, number: u64) -> bool {
        match &self.windows[usize::from(path)] {
            Some(window) => window.is_fresh(number),
            None => number < u64::MAX,
        }
    }

    /// Notes the arrival of an authentic datagram of `len` bytes.
    #[inline]
    pub(crate) fn take(&mut self, path: u8, number: u64, len: usize) {
        let window = &mut self.windows[usize::from(path)];
        window.get_or_insert_with(|| Window::new(self.window)).take(number);
        self.bytes_opened += len as u64;
    }

    /// `true` if the keys should be replaced.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.rekey_at || self.bytes_sealed.max(self.bytes_opened) >= self.rekey_bytes
    }

    /// `true` if the keys have expired.
    #[inline]
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now >= self.ends_at
            || self.bytes_sealed.max(self.bytes_opened) >= self.rekey_bytes * ENDS_AT
    }

    pub(crate) fn status(&self, now: Instant) -> KeysStatus {
        KeysStatus {
            cipher: self.cipher,
            age: now.since(self.made_at),
            bytes_sealed: self.bytes_sealed,
            bytes_opened: self.bytes_opened,
            is_initiator: self.is_initiator,
        }
    }
}

/// Content of an index.
pub(crate) enum SessionSlot {
    /// Reserved for the keys of a handshake that this box started with this peer.
    Promised(usize),
    Keys(Box<Session>),
}

/// Sessions by this box's index, whose low bits are the slot: no hashing is needed.
pub(crate) struct Sessions {
    slots: Vec<Option<(u32, SessionSlot)>>,
    max: usize,
}

/// Number of index bits that are the slot.
const SLOT_BITS: u32 = 10;

impl Sessions {
    /// Room for `peers` peers, each with keys in use, previous keys, pending keys, and a handshake.
    pub(crate) fn new(peers: usize) -> Self {
        Sessions { slots: Vec::new(), max: (peers * 4).min(1 << SLOT_BITS) }
    }

    /// Reserves an index: its slot, and bits of `random`. `None` if the maximum is reached.
    pub(crate) fn reserve(&mut self, random: u32, peer: usize) -> Option<u32> {
        let slot = match self.slots.iter().position(Option::is_none) {
            Some(slot) => slot,
            None if self.slots.len() < self.max => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return None,
        };
        // Never 0, which stands for no keys.
        let local = (random | 1 << SLOT_BITS) & !((1 << SLOT_BITS) - 1) | slot as u32;
        self.slots[slot] = Some((local, SessionSlot::Promised(peer)));
        Some(local)
    }

    fn slot(&mut self, local: u32) -> Option<&mut Option<(u32, SessionSlot)>> {
        let slot = self.slots.get_mut((local & ((1 << SLOT_BITS) - 1)) as usize)?;
        matches!(slot, Some((name, _)) if *name == local).then_some(slot)
    }

    /// Stores the session for which an index was reserved.
    pub(crate) fn fill(&mut self, session: Session) {
        if let Some(slot) = self.slot(session.local) {
            *slot = Some((session.local, SessionSlot::Keys(Box::new(session))));
        }
    }

    pub(crate) fn remove(&mut self, local: u32) {
        if let Some(slot) = self.slot(local) {
            *slot = None;
        }
    }

    /// Peer of the handshake for which `local` was reserved.
    pub(crate) fn promised(&mut self, local: u32) -> Option<usize> {
        match self.slot(local)? {
            Some((_, SessionSlot::Promised(peer))) => Some(*peer),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, local: u32) -> Option<&mut Session> {
        match self.slots.get_mut((local & ((1 << SLOT_BITS) - 1)) as usize)? {
            Some((name, SessionSlot::Keys(session))) if *name == local => Some(session),
            _ => None,
        }
    }

    pub(crate) fn get(&self, local: u32) -> Option<&Session> {
        match self.slots.get((local & ((1 << SLOT_BITS) - 1)) as usize)? {
            Some((name, SessionSlot::Keys(session))) if *name == local => Some(session),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_never_zero_and_end_with_their_session() {
        let mut sessions = Sessions::new(1);
        let names: Vec<u32> = (0..4).map(|_| sessions.reserve(0, 0).unwrap()).collect();
        assert!(names.iter().all(|name| *name != 0));
        assert_eq!(sessions.reserve(0, 0), None, "bounded");
        assert_eq!(sessions.promised(names[2]), Some(0));
        sessions.remove(names[2]);
        assert_eq!(sessions.promised(names[2]), None);
        let again = sessions.reserve(0xffff_ffff, 0).unwrap();
        assert_ne!(again, names[2]);
        assert!(sessions.get(again).is_none());
    }
}
