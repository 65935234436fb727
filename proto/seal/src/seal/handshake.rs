//! Key exchange: ask → answer with a cookie → the two messages of Noise. Within a session, only the
//! two messages, sealed.
//!
//! An attacker that only asks costs a bounded number of answers, each of one hash and none longer
//! than its question. No cryptographic operation follows until a cookie has returned, and the
//! configuration limits their rate.

use super::Seal;
use crate::addresses::{AddressKey, Call, TRIES};
use crate::cipher::Preference;
use crate::format::{
    ASK_BODY, Answer, DatagramKind, Header, Init, NOISE_RESPONSE_LEN, Response, Terms, Token,
    VERSION,
};
use crate::noise::{Initiator, Responder};
use crate::peers::{Pending, Shaking};
use crate::session::{Agreed, Session, Way};
use crate::{DropReason, NoKeys, PublicKey};
use longhaul_units::{Duration, Instant, Rng};
use longhaul_wire::Path;
use ring::digest;
use std::net::IpAddr;

/// Minimum lifetime of a cookie.
const COOKIE_LIFE_NS: u64 = 10_000_000_000;
/// Time allowed for the far box to prove that it has the keys of a handshake that it started.
const PENDING_LIFE: Duration = Duration::from_ms(10_000);
/// Minimum interval between notices of unknown keys that are honoured, for each peer.
const DEAF_FOR: Duration = Duration::from_ms(1000);
/// First messages that are remembered, so that none is processed twice while its cookie is valid.
const ANSWERED_MAX: usize = 256;

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn token(bytes: &[u8]) -> Token {
    bytes.first_chunk().copied().unwrap_or_default()
}

/// Compares two tokens in constant time.
fn is_same(a: &Token, b: &Token) -> bool {
    a.iter().zip(b).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
}

/// Mark of the box with `key` in an answer to `nonce`.
fn who(nonce: u64, key: &PublicKey) -> Token {
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(b"longhaul seal 1: answer");
    hash.update(&nonce.to_be_bytes());
    hash.update(&key.0);
    token(hash.finish().as_ref())
}

/// Prologue of a handshake, which both ends must compute identically. `headers` are the INIT's.
fn bound(is_inside: bool, nonce: u64, index: u32, headers: &Path) -> Vec<u8> {
    let mut bound = b"longhaul seal".to_vec();
    bound.extend([VERSION, u8::from(is_inside)]);
    bound.extend(nonce.to_be_bytes());
    bound.extend(index.to_be_bytes());
    bound.extend(octets(headers.source_ip));
    bound.extend(octets(headers.destination_ip));
    bound
}

impl Seal {
    /// Cookie that proves that its holder receives datagrams sent to its address.
    fn cookie(&self, epoch: u64, nonce: u64, headers: &Path) -> Token {
        self.cookies.tag(&[
            &epoch.to_be_bytes(),
            &nonce.to_be_bytes(),
            &octets(headers.source_ip),
            &octets(headers.destination_ip),
            &headers.vlan.unwrap_or_default().to_be_bytes(),
        ])
    }

    fn header(kind: DatagramKind, way: &Way, index: u32, number: u64) -> Header {
        Header { kind, path: way.path as u8, udp_checksum: 0, index, number }
    }

    fn way_by(&self, way: &Way, tries: u32) -> Way {
        Way { path: (way.path + tries as usize) % usize::from(self.config.paths), ..*way }
    }

    /// Sends a question to the destination of `way`, unless it is paused or one is in progress.
    pub(super) fn call(&mut self, now: Instant, way: Way, wants_fresh_keys: bool) {
        let key = AddressKey::destination(&way.headers);
        if !self.addresses.may_call(now, &key) {
            return;
        }
        // A handshake with the peer in progress decides first.
        let peer = self.addresses.peer(&key).map(|peer| &self.peers[peer]);
        if !wants_fresh_keys
            && peer.is_some_and(|peer| peer.shaking.is_some() || peer.pending.is_some())
        {
            return;
        }
        let nonce = self.rng.next_u64();
        self.addresses.calls.push(Call { nonce, way, tries: 0, next_at: now, wants_fresh_keys });
        self.handle_calls(now);
        self.is_changed = true;
    }

    pub(super) fn learn(&mut self, now: Instant, key: AddressKey, peer: usize) {
        if !self.addresses.learn(now, key, peer) {
            self.counters.address_table_full += 1;
        }
        self.forget_unknown_key(key);
        self.release_waiting(now);
    }

    /// Notifies the sender of a datagram that its keys are unknown. This keeps no state, and the
    /// notice proves nothing.
    pub(super) fn notify(&mut self, now: Instant, way: &Way, header: &Header) {
        self.drop(DropReason::UnknownKeys);
        if self.sessions.promised(header.index).is_some() {
            // The datagram overtook the RESPONSE.
            return;
        }
        if !self.notices.take(now) {
            return;
        }
        self.counters.unknown_sent += 1;
        let notice = Header { kind: DatagramKind::Unknown, udp_checksum: 0, ..*header };
        self.post(now, way, None, &notice, &[]);
    }

    /// Handles a message of a seal; `way` leads back to its sender, `inside` are the keys that it
    /// was sealed with.
    pub(super) fn handle_message(
        &mut self,
        now: Instant,
        way: Way,
        inside: Option<u32>,
        header: &Header,
        body: &[u8],
    ) {
        self.is_changed = true;
        match (header.kind, inside) {
            (DatagramKind::Ask, None) if body.len() == ASK_BODY.len() => {
                self.handle_ask(now, &way, header)
            }
            (DatagramKind::Answer, None) => match Answer::read(body) {
                Some(answer) => self.handle_answer(now, way, header, &answer),
                None => self.drop(DropReason::Malformed),
            },
            (DatagramKind::Unknown, None) if body.is_empty() => {
                self.handle_unknown(now, way, header)
            }
            (DatagramKind::Init, _) => match Init::read(body) {
                Some(init) => self.handle_init(now, way, inside, header, &init),
                None => self.drop(DropReason::Malformed),
            },
            (DatagramKind::Response, _) => match Response::read(body) {
                Some(response) => self.handle_response(now, way, inside, header, &response),
                None => self.drop(DropReason::Malformed),
            },
            _ => self.drop(DropReason::Malformed),
        }
    }

    fn handle_ask(&mut self, now: Instant, way: &Way, header: &Header) {
        if !self.answers.take(now) {
            return self.drop(DropReason::TooManyQuestions);
        }
        self.counters.answers_sent += 1;
        let cookie = self.cookie(now.as_ns() / COOKIE_LIFE_NS, header.number, &way.headers);
        let answer = Answer { cookie, who: who(header.number, &self.own) };
        let header = Seal::header(DatagramKind::Answer, way, 0, header.number);
        self.post(now, way, None, &header, &answer.write());
    }

    fn handle_answer(&mut self, now: Instant, way: Way, header: &Header, answer: &Answer) {
        let key = AddressKey::destination(&way.headers);
        let Some(call) = self.addresses.answered(header.number, &key) else {
            return self.drop(DropReason::Unasked);
        };
        let peer = self
            .peers
            .iter()
            .position(|peer| is_same(&who(header.number, &peer.config.public_key), &answer.who));
        let Some(peer) = peer else {
            self.addresses.pause(now, key, now + self.config.ask_pause);
            self.note_unknown_key(now, key);
            return self.drop(DropReason::NoPeer);
        };
        self.learn(now, key, peer);
        let has_keys = self.has_keys(now, peer);
        let of = &mut self.peers[peer];
        if call.wants_fresh_keys && of.shaking.as_ref().is_some_and(|shaking| shaking.is_inside) {
            // The far box has lost the keys that this handshake's messages are sealed with.
            self.abandon(peer);
        } else if of.shaking.is_some() || has_keys && !call.wants_fresh_keys {
            return;
        }
        if self.peers[peer].pending.is_none() {
            self.begin(now, peer, way, Some((header.number, answer.cookie)));
        }
    }

    pub(super) fn has_keys(&self, now: Instant, peer: usize) -> bool {
        let session = self.peers[peer].current.and_then(|local| self.sessions.get(local));
        session.is_some_and(|session| !session.is_over(now))
    }

    fn handle_unknown(&mut self, now: Instant, way: Way, header: &Header) {
        if !self.notices.take(now) {
            return self.drop(DropReason::TooManyQuestions);
        }
        let is_meant = |local: u32, seal: &Seal| {
            seal.sessions.get(local).is_some_and(|session| {
                session.remote == header.index
                    && header.number < session.sent(usize::from(header.path))
            })
        };
        let peer = self
            .peers
            .iter()
            .position(|peer| peer.current.is_some_and(|local| is_meant(local, self)));
        let Some(peer) = peer.filter(|peer| self.peers[*peer].deaf_until <= now) else {
            return self.drop(DropReason::Unasked);
        };
        self.peers[peer].deaf_until = now + DEAF_FOR;
        self.counters.unknown_received += 1;
        self.call(now, way, true);
    }

    /// Starts to replace the keys in use with a peer, unless a handshake is in progress.
    pub(super) fn rekey(&mut self, now: Instant, peer: usize, way: Way) {
        let of = &self.peers[peer];
        if of.shaking.is_none() && of.pending.is_none() && of.quiet_until <= now {
            self.begin(now, peer, way, None);
        }
    }

    /// Sends the first message: with the nonce and cookie of an answer, or without them, sealed
    /// with the keys in use.
    fn begin(&mut self, now: Instant, peer: usize, way: Way, asked: Option<(u64, Token)>) {
        let is_inside = asked.is_none();
        let (nonce, cookie) = asked.unwrap_or_else(|| (self.rng.next_u64(), [0; 16]));
        let random = self.rng.next_u64() as u32;
        let Some(local) = self.sessions.reserve(random, peer) else { return };
        let seed = self.rng.draw_seed();
        let terms = Terms { ciphers: Preference::of(&self.config.ciphers) };
        let of = &mut self.peers[peer];
        let (far, shared) = (&of.config.public_key, of.config.preshared_key.as_ref());
        let bound = bound(is_inside, nonce, local, &way.headers);
        let begun = Initiator::begin(&self.config.private_key, far, shared, seed, &bound, terms);
        let Some((noise, message)) = begun else { return self.sessions.remove(local) };
        let body = Init { index: local, cookie, noise: message }.write();
        of.shaking =
            Some(Shaking { local, nonce, noise, body, way, is_inside, tries: 0, next_at: now });
        self.counters.handshakes_begun += 1;
        self.press_on(now, peer);
        self.is_changed = true;
    }

    /// Retransmits the first message if that is due, or gives the handshake up.
    fn press_on(&mut self, now: Instant, peer: usize) {
        let every = self.config.ask_every;
        let of = &mut self.peers[peer];
        let current = of.current;
        let Some(shaking) = of.shaking.as_mut().filter(|shaking| shaking.next_at <= now) else {
            return;
        };
        let (way, is_inside) = (shaking.way, shaking.is_inside);
        if is_inside && current.is_none() {
            // The keys to be replaced have expired.
            return self.abandon(peer);
        }
        if shaking.tries == TRIES {
            self.abandon(peer);
            self.peers[peer].quiet_until = now + self.config.ask_pause;
            if is_inside {
                return self.call(now, way, true);
            }
            self.peers[peer].note_trouble(NoKeys::Unanswered);
            return self.give_up(now, &way);
        }
        let (tries, local, nonce, body) =
            (shaking.tries, shaking.local, shaking.nonce, shaking.body);
        shaking.tries += 1;
        shaking.next_at = now + every;
        let way = self.way_by(&way, tries);
        debug_assert_eq!(self.sessions.promised(local), Some(peer));
        let header = Seal::header(DatagramKind::Init, &way, 0, nonce);
        self.post(now, &way, if is_inside { current } else { None }, &header, &body);
    }

    /// Abandons a handshake that this box started.
    fn abandon(&mut self, peer: usize) {
        if let Some(shaking) = self.peers[peer].shaking.take() {
            self.sessions.remove(shaking.local);
        }
    }

    /// Pauses questions to the destination of `way`, which remain unanswered, unless there are keys
    /// for it.
    fn give_up(&mut self, now: Instant, way: &Way) {
        let key = AddressKey::destination(&way.headers);
        if self.addresses.peer(&key).is_none_or(|peer| !self.has_keys(now, peer)) {
            self.addresses.pause(now, key, now + self.config.ask_pause);
        }
    }

    fn handle_init(
        &mut self,
        now: Instant,
        way: Way,
        inside: Option<u32>,
        header: &Header,
        init: &Init,
    ) {
        if inside.is_none() {
            let epoch = now.as_ns() / COOKIE_LIFE_NS;
            let is_ours =
                |epoch| is_same(&self.cookie(epoch, header.number, &way.headers), &init.cookie);
            if !(is_ours(epoch) || epoch > 0 && is_ours(epoch - 1)) {
                return self.drop(DropReason::HandshakeCookie);
            }
        }
        let mark = ephemeral(&init.noise);
        let respond = |response: &[u8; Response::LEN], seal: &mut Seal| {
            let header = Seal::header(DatagramKind::Response, &way, init.index, header.number);
            seal.post(now, &way, inside, &header, response);
        };
        let pending = self.peers.iter().filter_map(|peer| peer.pending.as_ref());
        if let Some(response) = pending.into_iter().find(|p| p.noise == mark).map(|p| p.response) {
            // The RESPONSE was lost, or is in flight.
            return respond(&response, self);
        }
        if self.answered.contains(&mark) {
            return self.drop(DropReason::HandshakeReplayed);
        }
        if !self.handshakes.take(now) {
            return self.drop(DropReason::TooManyHandshakes);
        }
        let bound = bound(inside.is_some(), header.number, init.index, &way.headers.reversed());
        let seed = self.rng.draw_seed();
        let Some(responder) = Responder::read(&self.config.private_key, seed, &bound, &init.noise)
        else {
            return self.drop(DropReason::HandshakeForged);
        };
        let peer = self.peers.iter().position(|peer| peer.config.public_key == responder.who);
        let sealed_by = inside.and_then(|local| Some(self.sessions.get(local)?.peer));
        let Some(peer) = peer.filter(|peer| sealed_by.is_none_or(|by| by == *peer)) else {
            self.note_unknown_key(now, AddressKey::destination(&way.headers));
            return self.drop(DropReason::HandshakeStranger);
        };
        if self.is_ours_to_finish(peer, inside.is_some()) {
            return self.drop(DropReason::HandshakeCrossed);
        }
        if self.answered.len() == ANSWERED_MAX {
            self.answered.pop_front();
        }
        self.answered.push_back(mark);
        if let Some(response) = self.accept(now, &way, peer, responder, init.index) {
            if let Some(pending) = &mut self.peers[peer].pending {
                pending.noise = mark;
            }
            respond(&response, self);
        }
    }

    /// `true` if this end's handshake continues and the peer's is dropped, when both started at
    /// once. The greater public key's continues, unless only one of them is sealed with keys: the
    /// other end may have lost those.
    fn is_ours_to_finish(&self, peer: usize, is_theirs_inside: bool) -> bool {
        let of = &self.peers[peer];
        match &of.shaking {
            None => false,
            Some(ours) if ours.is_inside != is_theirs_inside => is_theirs_inside,
            Some(_) => self.own > of.config.public_key,
        }
    }

    /// Derives keys with a peer that has started a handshake. They are not used for sealing until
    /// the peer has proved that it has them.
    fn accept(
        &mut self,
        now: Instant,
        way: &Way,
        peer: usize,
        responder: Responder,
        remote: u32,
    ) -> Option<[u8; Response::LEN]> {
        let Some(cipher) = Preference::of(&self.config.ciphers).agree(responder.ciphers) else {
            self.peers[peer].note_trouble(NoKeys::Cipher);
            self.drop(DropReason::HandshakeCipher);
            return None;
        };
        self.abandon(peer);
        if let Some(former) = self.peers[peer].pending.take() {
            self.sessions.remove(former.local);
            // The peer has had the response for as long as it retransmits its first message.
            let patience = self.config.ask_every.times(u64::from(TRIES));
            if former.until + patience <= now + PENDING_LIFE {
                self.peers[peer].note_trouble(NoKeys::Unfinished);
            }
        }
        let random = self.rng.next_u64() as u32;
        let local = self.sessions.reserve(random, peer)?;
        let of = &self.peers[peer].config;
        let chosen = Terms { ciphers: Preference::of(&[cipher]) };
        let made = responder.answer(of.preshared_key.as_ref(), chosen).and_then(|(keys, noise)| {
            let agreed = Agreed { local, remote, peer, is_initiator: false, cipher, keys };
            Some((Session::new(now, &self.config, agreed)?, noise))
        });
        let Some((session, noise)) = made else {
            self.sessions.remove(local);
            return None;
        };
        self.sessions.fill(session);
        self.learn(now, AddressKey::destination(&way.headers), peer);
        let response = Response { index: local, noise }.write();
        self.peers[peer].pending =
            Some(Pending { local, until: now + PENDING_LIFE, noise: [0; 32], response });
        Some(response)
    }

    fn handle_response(
        &mut self,
        now: Instant,
        way: Way,
        inside: Option<u32>,
        header: &Header,
        response: &Response,
    ) {
        let peer = self.sessions.promised(header.index);
        let is_asked =
            peer.and_then(|peer| self.peers[peer].shaking.as_ref()).is_some_and(|shaking| {
                shaking.local == header.index
                    && shaking.nonce == header.number
                    && shaking.is_inside == inside.is_some()
            });
        let Some(peer) = peer.filter(|_| is_asked) else { return self.drop(DropReason::Unasked) };
        if !self.handshakes.take(now) {
            return self.drop(DropReason::TooManyHandshakes);
        }
        let Some(shaking) = &mut self.peers[peer].shaking else { return };
        let noise: &[u8; NOISE_RESPONSE_LEN] = &response.noise;
        let Some((keys, terms)) = shaking.noise.finish(noise) else {
            self.peers[peer].note_trouble(NoKeys::PresharedKey);
            return self.drop(DropReason::HandshakeForged);
        };
        let local = shaking.local;
        let own = Preference::of(&self.config.ciphers);
        let (remote, is_initiator) = (response.index, true);
        let session = own.agree(terms.ciphers).and_then(|cipher| {
            let agreed = Agreed { local, remote, peer, is_initiator, cipher, keys };
            Session::new(now, &self.config, agreed)
        });
        let Some(session) = session else {
            self.abandon(peer);
            return self.drop(DropReason::HandshakeCipher);
        };
        self.peers[peer].shaking = None;
        self.sessions.fill(session);
        if let Some(pending) = self.peers[peer].pending.take() {
            self.sessions.remove(pending.local);
        }
        self.replace_keys(now, peer, local);
        // The far box uses them for sealing once it knows that this box has them.
        self.post_control(now, &way, local, &[]);
    }

    /// Notes that a peer that started a handshake has proved that it has the keys.
    pub(super) fn confirmed(&mut self, now: Instant, peer: usize) {
        let Some(pending) = self.peers[peer].pending.take() else { return };
        self.abandon(peer);
        self.replace_keys(now, peer, pending.local);
        self.is_changed = true;
    }

    fn replace_keys(&mut self, now: Instant, peer: usize, local: u32) {
        self.counters.handshakes_done += 1;
        let of = &mut self.peers[peer];
        of.handshakes += 1;
        of.trouble = None;
        of.quiet_until = now;
        if let Some(old) = of.current.replace(local) {
            self.counters.rekeys += 1;
            let before = of.previous.replace((old, now + self.config.old_keys_for));
            if let Some((before, _)) = before {
                self.sessions.remove(before);
            }
        }
        self.release_waiting(now);
    }

    fn handle_calls(&mut self, now: Instant) {
        for at in (0..self.addresses.calls.len()).rev() {
            let every = self.config.ask_every;
            let call = &mut self.addresses.calls[at];
            if call.next_at > now {
                continue;
            }
            let (way, tries, nonce) = (call.way, call.tries, call.nonce);
            if tries == TRIES {
                self.addresses.calls.swap_remove(at);
                self.give_up(now, &way);
                continue;
            }
            call.tries += 1;
            call.next_at = now + every;
            let way = self.way_by(&way, tries);
            self.counters.asks_sent += 1;
            self.post(now, &way, None, &Seal::header(DatagramKind::Ask, &way, 0, nonce), &ASK_BODY);
        }
    }

    /// Handles everything that is due.
    pub(super) fn handle_due(&mut self, now: Instant) {
        self.handle_calls(now);
        for _ in 0..self.waiting.drop_due(now) {
            self.drop(DropReason::NoKeys);
        }
        for peer in 0..self.peers.len() {
            self.press_on(now, peer);
            let of = &mut self.peers[peer];
            let pending =
                of.pending.take_if(|pending| pending.until <= now).map(|pending| pending.local);
            if pending.is_some() {
                of.note_trouble(NoKeys::Unfinished);
            }
            let previous = of.previous.take_if(|(_, until)| *until <= now).map(|(local, _)| local);
            let over = |local: &mut u32| self.sessions.get(*local).is_none_or(|s| s.ends_at <= now);
            let current = of.current.take_if(over);
            for local in [pending, previous, current].into_iter().flatten() {
                self.sessions.remove(local);
            }
        }
    }
}

/// Ephemeral key of a first message, which no two handshakes share.
fn ephemeral(noise: &[u8]) -> [u8; 32] {
    noise.first_chunk().copied().unwrap_or_default()
}
