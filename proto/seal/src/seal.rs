//! The sealing node: encrypts datagrams to the WAN and decrypts datagrams from it.

mod handshake;
mod sealed;

pub use sealed::Sealed;

use crate::addresses::{AddressKey, Addresses, TRIES};
use crate::budget::Budget;
use crate::config::{Config, ConfigError};
use crate::datagram::{Datagram, opened};
use crate::format::{BODY_MAX, DatagramKind, Found, HEADER_LEN, Header, copy_out, headers};
use crate::keys::PublicKey;
use crate::peers::{InitMark, Peer};
use crate::session::{Sessions, Way};
use crate::waiting::{Waiter, Waiting};
use crate::{Counters, DropReason, PeerStatus, Trouble};
use longhaul_node::{
    Deadline, Frame, FrameBuf, FramePool, FrameQueue, Node, Payload, Side, Trailer, Transmit,
};
use longhaul_secret::{SecretRng, TagKey};
use longhaul_units::{Duration, Instant, Rng};
use longhaul_wire::Udp;
use std::collections::VecDeque;

/// Payload of a frame as counted by [`Node::intake`], in bytes: a path MTU of 4 KiB and the headers
/// behind UDP.
const INTAKE_PAYLOAD: usize = 4096 + 256;
/// Maximum number of handshake messages that wait for room; further ones are dropped.
const LETTERS_MAX: usize = 256;
/// Time after which a box with an unknown key is no longer reported.
const UNKNOWN_KEY_FOR: Duration = Duration::from_ms(300_000);

/// Queues of one path.
struct Lane {
    to_inner: FrameQueue,
    to_wan: FrameQueue,
}

/// Encrypts and authenticates the transport's datagrams, and opens those sent to it; see the
/// crate's documentation.
///
/// Path `n`, from 0, has side [`Seal::inner`]`(n)` towards the transport and side
/// [`Seal::wan`]`(n)` towards the WAN: with one path, 0 and 1.
pub struct Seal {
    config: Config,
    counters: Counters,
    rng: SecretRng,
    cookies: TagKey,
    own: PublicKey,
    peers: Vec<Peer>,
    sessions: Sessions,
    addresses: Addresses,
    answers: Budget,
    notices: Budget,
    handshakes: Budget,
    /// First messages that were answered recently.
    answered: VecDeque<InitMark>,
    pool: FramePool,
    waiting: Waiting,
    /// Address of a box with an unknown key, and the time of its last answer.
    unknown_key: Option<(AddressKey, Instant)>,
    lanes: Vec<Lane>,
    letters: VecDeque<(Side, FrameBuf)>,
    /// The next deadline may have changed.
    is_changed: bool,
    deadline: Option<Deadline>,
}

impl Seal {
    /// Creates a seal without keys.
    ///
    /// # Errors
    /// Returns an error if a field of `config` is outside its range, or its keys contradict each
    /// other.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let mut rng = SecretRng::new(&config.seed);
        let lane = |_| Lane {
            to_inner: FrameQueue::new(config.queue_bytes_max),
            to_wan: FrameQueue::new(config.queue_bytes_max),
        };
        Ok(Seal {
            counters: Counters::default(),
            cookies: TagKey::draw(&mut rng),
            own: config.private_key.public(),
            peers: config.peers.iter().cloned().map(Peer::new).collect(),
            sessions: Sessions::new(config.peers.len()),
            addresses: Addresses::new(config.addresses_max, rng.next_u64()),
            answers: Budget::new(config.answers_per_s),
            notices: Budget::new(config.answers_per_s),
            handshakes: Budget::new(config.handshakes_per_s),
            answered: VecDeque::new(),
            pool: FramePool::new(),
            waiting: Waiting::default(),
            unknown_key: None,
            lanes: (0..config.paths).map(lane).collect(),
            letters: VecDeque::new(),
            is_changed: false,
            deadline: None,
            rng,
            config,
        })
    }

    /// Side of path `path`, from 0, towards the transport.
    pub const fn inner(path: usize) -> Side {
        2 * path
    }

    /// Side of path `path`, from 0, towards the WAN.
    pub const fn wan(path: usize) -> Side {
        2 * path + 1
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// This box's public key.
    pub fn public_key(&self) -> PublicKey {
        self.own
    }

    /// Counters since creation.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Snapshots of all peers, in the order of the configuration.
    pub fn peers(&self, now: Instant) -> impl Iterator<Item = PeerStatus> + '_ {
        self.peers.iter().map(move |peer| peer.status(now, &self.sessions))
    }

    /// Reasons why there are no keys with far boxes that were found; empty if there are keys with
    /// all of them.
    pub fn troubles(&self, now: Instant) -> Vec<Trouble> {
        let unknown = self.unknown_key.filter(|(_, at)| now.since(*at) < UNKNOWN_KEY_FOR);
        let unknown = unknown.map(|(key, _)| Trouble::UnknownKey { address: key.address() });
        unknown.into_iter().chain(self.peers.iter().filter_map(Peer::trouble)).collect()
    }

    /// Notes a box behind `key` that is no configured peer. While the trouble lasts, the first
    /// address is kept, so that one mistake is reported once.
    fn note_unknown_key(&mut self, now: Instant, key: AddressKey) {
        match &mut self.unknown_key {
            Some((of, at)) if *of != key && now.since(*at) < UNKNOWN_KEY_FOR => {}
            unknown => *unknown = Some((key, now)),
        }
    }

    /// Clears the report of an unknown key: a peer is behind `key`.
    fn forget_unknown_key(&mut self, key: AddressKey) {
        self.unknown_key.take_if(|(unknown, _)| *unknown == key);
    }

    fn drop(&mut self, reason: DropReason) {
        self.counters.drops.count(reason);
    }

    /// Passes a frame through unchanged, if it may pass.
    fn pass(&mut self, frame: &Frame<'_>, is_outbound: bool) -> Option<FrameBuf> {
        if !self.config.cleartext.allows(frame, is_outbound) {
            self.drop(if is_outbound { DropReason::ClearRdmaOut } else { DropReason::ClearRdmaIn });
            return None;
        }
        if !frame.may_be_kept() {
            self.drop(DropReason::Oversized);
            return None;
        }
        self.counters.passed += 1;
        Some(self.pool.hold(frame))
    }

    /// Handles a frame that the transport sends on a path. Returns the frame to transmit.
    #[inline]
    fn outbound(&mut self, now: Instant, path: usize, frame: &Frame<'_>) -> Option<FrameBuf> {
        let datagram = match Datagram::find(path, frame, self.config.port) {
            None => return self.pass(frame, true),
            Some(Err(reason)) => {
                self.drop(reason);
                return None;
            }
            Some(Ok(datagram)) => datagram,
        };
        let peer = self.addresses.peer(&datagram.destination());
        let local = peer.and_then(|peer| self.peers[peer].sealing_keys());
        let Some(session) = local.and_then(|local| self.sessions.get_mut(local)) else {
            self.without_keys(now, &datagram);
            return None;
        };
        let peer = session.peer;
        let sealed = datagram.seal(now, DatagramKind::Data, &mut self.pool, session);
        let is_due = session.is_due(now);
        match &sealed {
            Ok(_) => self.counters.sealed += 1,
            Err(DropReason::NoKeys) => {
                self.without_keys(now, &datagram);
                return None;
            }
            Err(reason) => self.drop(*reason),
        }
        if is_due {
            self.rekey(now, peer, datagram.way_on());
        }
        sealed.ok()
    }

    /// Handles a transport datagram that cannot be sealed yet: sends a question, and lets the
    /// datagram wait.
    fn without_keys(&mut self, now: Instant, datagram: &Datagram<'_>) {
        let until = now + self.config.ask_every.times(u64::from(TRIES));
        let frame = self.pool.hold(datagram.frame);
        if self.waiting.push(Waiter { until, path: datagram.path, frame }) {
            self.counters.waited += 1;
            self.is_changed = true;
        } else {
            self.drop(DropReason::NoKeys);
        }
        self.call(now, datagram.way_on(), false);
    }

    /// Seals the datagrams that waited, once there are keys with a peer or a further address of it
    /// is known.
    fn release_waiting(&mut self, now: Instant) {
        for waiter in self.waiting.take() {
            let frame = waiter.frame.as_frame();
            let key = Udp::find(frame.head).map(|udp| AddressKey::in_head(frame.head, udp, false));
            let peer = key.and_then(|key| self.addresses.peer(&key));
            if peer.is_none_or(|peer| !self.has_keys(now, peer)) {
                self.waiting.push(waiter);
                continue;
            }
            let held = self.outbound(now, waiter.path, &frame);
            if held.is_some_and(|held| !self.lanes[waiter.path].to_wan.push(held)) {
                self.drop(DropReason::QueueFull);
            }
        }
    }

    /// Handles a frame from the WAN on a path. Returns the frame for the transport.
    #[inline]
    fn inbound(&mut self, now: Instant, path: usize, frame: &Frame<'_>) -> Option<FrameBuf> {
        self.counters.wan_frames_in += 1;
        let datagram = match Datagram::find(path, frame, self.config.port) {
            None => return self.pass(frame, false),
            Some(Err(reason)) => {
                self.drop(reason);
                return None;
            }
            Some(Ok(datagram)) => datagram,
        };
        let refusal = match Header::read(datagram.message()) {
            Found::Clear => DropReason::ClearRefused,
            Found::Foreign => DropReason::Version,
            Found::Header(_) if datagram.len < HEADER_LEN => DropReason::Malformed,
            Found::Header(header)
                if matches!(header.kind, DatagramKind::Data | DatagramKind::Control) =>
            {
                return self.handle_sealed(now, &datagram, &header);
            }
            Found::Header(header) => {
                self.handle_open_message(now, &datagram, &header);
                return None;
            }
        };
        self.drop(refusal);
        None
    }

    /// Handles an unsealed datagram of the seal's own.
    fn handle_open_message(&mut self, now: Instant, datagram: &Datagram<'_>, header: &Header) {
        let mut body = [0; BODY_MAX];
        let body = body.get_mut(..datagram.len - HEADER_LEN);
        let Some(body) = body.filter(|body| body.len() <= BODY_MAX) else {
            return self.drop(DropReason::Malformed);
        };
        if copy_out(datagram.frame, datagram.udp.payload() + HEADER_LEN, body).is_none() {
            return self.drop(DropReason::Malformed);
        }
        self.handle_message(now, datagram.way_back(), None, header, body);
    }

    #[inline]
    fn handle_sealed(
        &mut self,
        now: Instant,
        datagram: &Datagram<'_>,
        header: &Header,
    ) -> Option<FrameBuf> {
        let session = self.sessions.get_mut(header.index).filter(|session| !session.is_over(now));
        let Some(session) = session else {
            self.notify(now, &datagram.way_back(), header);
            return None;
        };
        let held = match datagram.open(header, &mut self.pool, session) {
            Ok(opened) => opened,
            Err(reason) => {
                self.drop(reason);
                return None;
            }
        };
        self.counters.opened += 1;
        let (local, peer) = (session.local, session.peer);
        let source = datagram.source();
        if session.source != Some(source) {
            session.source = Some(source);
            if self.addresses.peer(&source) != Some(peer) {
                self.learn(now, source, peer);
            }
        }
        if self.peers[peer].is_to_confirm(local) {
            self.replace_keys(now, peer, local);
        }
        if header.kind == DatagramKind::Control {
            let at = datagram.udp.payload();
            let message = held.lease().map_or(&[][..], |lease| &lease.bytes()[at..]);
            self.handle_control(now, datagram.way_back(), local, message);
            return None;
        }
        Some(held)
    }

    /// `true` if nothing waits to leave on this path.
    #[inline]
    fn is_clear_outward(&self, path: usize) -> bool {
        self.lanes.get(path).is_some_and(|lane| lane.to_wan.is_empty())
    }

    /// `true` if nothing from this path waits for the transport.
    #[inline]
    fn is_clear_inward(&self, path: usize) -> bool {
        self.lanes.get(path).is_some_and(|lane| lane.to_inner.is_empty())
    }

    /// Updates the deadline if it may have changed.
    #[inline]
    fn settle(&mut self) {
        if self.is_changed {
            self.find_deadline();
        }
    }

    fn handle_control(&mut self, now: Instant, way: Way, local: u32, message: &[u8]) {
        if message.is_empty() {
            return;
        }
        match Header::read(message) {
            Found::Header(header) => {
                self.handle_message(now, way, Some(local), &header, &message[HEADER_LEN..]);
            }
            Found::Foreign | Found::Clear => self.drop(DropReason::Malformed),
        }
    }

    /// Sends a datagram of the seal's own, in cleartext or sealed with the keys `inside`.
    fn post(&mut self, now: Instant, way: &Way, inside: Option<u32>, header: &Header, body: &[u8]) {
        let Some(local) = inside else {
            let letter = crate::format::datagram(
                &mut self.pool,
                &way.headers,
                self.config.port,
                header,
                body,
            );
            return self.post_letter(way.path, letter);
        };
        let message = [&header.write()[..], body].concat();
        self.post_control(now, way, local, &message);
    }

    /// Sends `message` sealed with the keys `local`.
    fn post_control(&mut self, now: Instant, way: &Way, local: u32, message: &[u8]) {
        let (head, len) = headers(&way.headers, self.config.port, message.len());
        let head = &head[..len];
        let Some(udp) = Udp::find(head) else { return };
        let Some(session) = self.sessions.get_mut(local) else { return };
        let frame = Frame { head, payload: Payload::Bytes(message), trailer: Trailer::None };
        let datagram = Datagram { path: way.path, frame: &frame, udp, len: message.len() };
        if let Ok(sealed) = datagram.seal(now, DatagramKind::Control, &mut self.pool, session) {
            self.post_letter(way.path, sealed);
        }
    }

    fn post_letter(&mut self, path: usize, letter: FrameBuf) {
        if self.letters.len() < LETTERS_MAX {
            self.letters.push_back((path, letter));
        }
    }

    fn send_letters(&mut self, out: &mut dyn Transmit) {
        for _ in 0..self.letters.len() {
            let Some((path, letter)) = self.letters.pop_front() else { return };
            if out.room(Seal::wan(path)) == 0 {
                self.letters.push_back((path, letter));
                continue;
            }
            self.counters.wan_frames_out += 1;
            out.transmit(Seal::wan(path), &letter.as_frame());
        }
    }

    fn find_deadline(&mut self) {
        self.is_changed = false;
        let calls = self.addresses.calls.iter().map(|call| call.next_at).min();
        let calls = calls.map(|at| Deadline { at, reason: "looking for a far box" });
        let peers = self.peers.iter().map(|peer| peer.deadline(&self.sessions));
        let waiting = self.waiting.next_at().map(|at| Deadline { at, reason: "keys" });
        self.deadline = peers.fold(Deadline::earliest(calls, waiting), Deadline::earliest);
    }
}

impl Node for Seal {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        let path = side / 2;
        if path >= self.lanes.len() {
            return;
        }
        let is_full = if side == Seal::inner(path) {
            self.counters.inner_frames_in += 1;
            let held = self.outbound(now, path, frame);
            held.is_some_and(|held| !self.lanes[path].to_wan.push(held))
        } else {
            let held = self.inbound(now, path, frame);
            held.is_some_and(|held| !self.lanes[path].to_inner.push(held))
        };
        if is_full {
            self.drop(DropReason::QueueFull);
        }
        self.settle();
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline.at <= now) {
            self.handle_due(now);
            self.find_deadline();
        }
    }

    fn poll_transmit(&mut self, _now: Instant, out: &mut dyn Transmit) {
        self.send_letters(out);
        for (path, lane) in self.lanes.iter_mut().enumerate() {
            let (inner, wan) = (Seal::inner(path), Seal::wan(path));
            while !lane.to_wan.is_empty() && out.room(wan) > 0 {
                let Some(held) = lane.to_wan.pop() else { break };
                self.counters.wan_frames_out += 1;
                out.transmit_held(wan, &held);
            }
            while !lane.to_inner.is_empty() && out.room(inner) > 0 {
                let Some(held) = lane.to_inner.pop() else { break };
                self.counters.inner_frames_out += 1;
                out.transmit(inner, &opened(&held));
            }
        }
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        self.deadline
    }

    fn intake(&self, side: Side) -> usize {
        let Some(lane) = self.lanes.get(side / 2) else { return 0 };
        let queue = if side == Seal::inner(side / 2) { &lane.to_wan } else { &lane.to_inner };
        queue.room(INTAKE_PAYLOAD, u64::MAX)
    }
}
