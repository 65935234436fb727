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
    ASK_BODY, Answer, DatagramKind, Header, Init, Response, Terms, Token, VERSION,
};
use crate::noise::{Initiator, Responder};
use crate::peers::{InitMark, InitTimer, Initiation};
use crate::session::{Agreed, Session, Way};
use crate::{DropReason, NoKeys, PublicKey};
use longhaul_units::{Instant, Rng};
use longhaul_wire::Path;
use ring::digest;
use std::net::IpAddr;

/// Minimum lifetime of a cookie.
const COOKIE_LIFE_NS: u64 = 10_000_000_000;
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
        let peer = self.addresses.peer(&key);
        if !wants_fresh_keys && peer.is_some_and(|peer| self.peers[peer].is_in_handshake()) {
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
            .position(|peer| is_same(&who(header.number, &peer.config().public_key), &answer.who));
        let Some(peer) = peer else {
            self.addresses.pause(now, key, now + self.config.ask_pause);
            self.note_unknown_key(now, key);
            return self.drop(DropReason::NoPeer);
        };
        self.learn(now, key, peer);
        let has_keys = self.has_keys(now, peer);
        let of = &mut self.peers[peer];
        if call.wants_fresh_keys {
            of.abandon_sealed(&mut self.sessions);
        } else if has_keys {
            return;
        }
        if !of.is_in_handshake() {
            self.begin(now, peer, way, Some((header.number, answer.cookie)));
        }
    }

    pub(super) fn has_keys(&self, now: Instant, peer: usize) -> bool {
        let session = self.peers[peer].sealing_keys().and_then(|local| self.sessions.get(local));
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
            .position(|peer| peer.sealing_keys().is_some_and(|local| is_meant(local, self)));
        if !peer.is_some_and(|peer| self.peers[peer].take_notice(now)) {
            return self.drop(DropReason::Unasked);
        }
        self.counters.unknown_received += 1;
        self.call(now, way, true);
    }

    /// Starts to replace the keys in use with a peer, unless a handshake is in progress.
    pub(super) fn rekey(&mut self, now: Instant, peer: usize, way: Way) {
        if self.peers[peer].may_rekey(now) {
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
        let of = self.peers[peer].config();
        let (far, shared) = (&of.public_key, of.preshared_key.as_ref());
        let bound = bound(is_inside, nonce, local, &way.headers);
        let begun = Initiator::begin(&self.config.private_key, far, shared, seed, &bound, terms);
        let Some((noise, message)) = begun else { return self.sessions.remove(local) };
        let body = Init { index: local, cookie, noise: message }.write();
        let init = Initiation { local, nonce, noise, body, way, is_inside };
        self.peers[peer].initiate(now, init);
        self.counters.handshakes_begun += 1;
        self.press_on(now, peer);
        self.is_changed = true;
    }

    /// Retransmits the first message if that is due, or gives the handshake up.
    fn press_on(&mut self, now: Instant, peer: usize) {
        let (every, pause) = (self.config.ask_every, self.config.ask_pause);
        match self.peers[peer].init_timer(now, every, pause, &mut self.sessions) {
            None => {}
            Some(InitTimer::Transmit { attempt, way, inside, nonce, body }) => {
                let way = self.way_by(&way, attempt);
                let header = Seal::header(DatagramKind::Init, &way, 0, nonce);
                self.post(now, &way, inside, &header, &body);
            }
            Some(InitTimer::Unanswered { way, was_inside: true }) => self.call(now, way, true),
            Some(InitTimer::Unanswered { way, was_inside: false }) => self.give_up(now, &way),
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
        let mark = mark_of(&init.noise);
        let respond = |response: &[u8; Response::LEN], seal: &mut Seal| {
            let header = Seal::header(DatagramKind::Response, &way, init.index, header.number);
            seal.post(now, &way, inside, &header, response);
        };
        if let Some(response) = self.peers.iter().find_map(|peer| peer.response_to(&mark)) {
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
        let peer = self.peers.iter().position(|peer| peer.config().public_key == responder.who);
        let sealed_by = inside.and_then(|local| Some(self.sessions.get(local)?.peer));
        let Some(peer) = peer.filter(|peer| sealed_by.is_none_or(|by| by == *peer)) else {
            self.note_unknown_key(now, AddressKey::destination(&way.headers));
            return self.drop(DropReason::HandshakeStranger);
        };
        if self.peers[peer].is_ours_to_finish(&self.own, inside.is_some()) {
            return self.drop(DropReason::HandshakeCrossed);
        }
        if self.answered.len() == ANSWERED_MAX {
            self.answered.pop_front();
        }
        self.answered.push_back(mark);
        if let Some(response) = self.accept(now, &way, peer, responder, (init.index, mark)) {
            respond(&response, self);
        }
    }

    /// Derives keys with a peer that has started a handshake with an INIT of this index and mark.
    /// They are not used for sealing until the peer has proved that it has them.
    fn accept(
        &mut self,
        now: Instant,
        way: &Way,
        peer: usize,
        responder: Responder,
        (remote, mark): (u32, InitMark),
    ) -> Option<[u8; Response::LEN]> {
        let Some(cipher) = Preference::of(&self.config.ciphers).agree(responder.ciphers) else {
            self.peers[peer].note_trouble(NoKeys::Cipher);
            self.drop(DropReason::HandshakeCipher);
            return None;
        };
        // The peer retransmits its first message for this long.
        let patience = self.config.ask_every.times(u64::from(TRIES));
        self.peers[peer].supersede(now, patience, &mut self.sessions);
        let random = self.rng.next_u64() as u32;
        let local = self.sessions.reserve(random, peer)?;
        let of = self.peers[peer].config();
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
        self.peers[peer].respond(now, local, mark, response);
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
        let (local, nonce, is_inside) = (header.index, header.number, inside.is_some());
        let peer = self.sessions.promised(local);
        let is_asked = |peer: &usize| self.peers[*peer].expects_response(local, nonce, is_inside);
        let Some(peer) = peer.filter(is_asked) else { return self.drop(DropReason::Unasked) };
        if !self.handshakes.take(now) {
            return self.drop(DropReason::TooManyHandshakes);
        }
        let Some((keys, terms)) = self.peers[peer].finish(&response.noise) else {
            return self.drop(DropReason::HandshakeForged);
        };
        let own = Preference::of(&self.config.ciphers);
        let (remote, is_initiator) = (response.index, true);
        let session = own.agree(terms.ciphers).and_then(|cipher| {
            let agreed = Agreed { local, remote, peer, is_initiator, cipher, keys };
            Session::new(now, &self.config, agreed)
        });
        let Some(session) = session else {
            self.peers[peer].abandon(&mut self.sessions);
            return self.drop(DropReason::HandshakeCipher);
        };
        self.sessions.fill(session);
        self.replace_keys(now, peer, local);
        // The far box uses them for sealing once it knows that this box has them.
        self.post_control(now, &way, local, &[]);
    }

    /// Seals with the keys `local` from now on, which both ends are known to have.
    pub(super) fn replace_keys(&mut self, now: Instant, peer: usize, local: u32) {
        let old_for = self.config.old_keys_for;
        let is_rekey = self.peers[peer].establish(now, local, old_for, &mut self.sessions);
        self.counters.handshakes_done += 1;
        self.counters.rekeys += u64::from(is_rekey);
        self.is_changed = true;
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
            self.peers[peer].expire(now, &mut self.sessions);
        }
    }
}

fn mark_of(noise: &[u8]) -> InitMark {
    noise.first_chunk().copied().unwrap_or_default()
}
