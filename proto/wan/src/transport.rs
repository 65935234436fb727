//! The transport node: sessions with far boxes, and the assignment of frames to streams.

use crate::addresses::{Addresses, Found, TRIES};
use crate::config::{Config, ConfigError};
use crate::format::{
    Ack, BODY_MAX, Close, DatagramKind, Header, Outer, ParityBody, Ping, PingStep, VERSION,
    body_of, encapsulate, ping_body_of, take_piece,
};
use crate::inner_queue::{Inward, Origin};
use crate::key::{Clocking, Map, StreamKey, WireKey, map};
use crate::session::{Session, Turn};
use crate::sessions::Sessions;
use crate::shared::{Body, ControlDatagram, TransportShared};
use crate::waiting::Waiting;
use crate::{Counters, DropReason, FarStatus, Hello, Refused, SessionStatus};
use longhaul_cc::{Gate, wire_bytes};
use longhaul_node::{
    Deadline, Frame, FrameBuf, FramePool, Node, Payload, Side, Trailer, Transmit, Turns,
};
use longhaul_secret::TagKey;
use longhaul_units::{Duration, Instant, Rng};
use longhaul_wire::{HEAD_MAX, ICRC_LEN, Layout, Packet, Path, Split, Udp, icrc, split};

/// The side that faces the hosts, or the node between them and the transport.
pub const INNER: Side = 0;
/// Memory cost of a frame with a 4 KiB payload, the unit of [`Node::intake`].
const FRAME_COST: u64 = FramePool::footprint(4096) as u64;

/// Class of frames that pass in [`Transport::turns`].
const PASSED: usize = 0;

/// Hop limit of control datagrams.
const HOP_LIMIT: u8 = 64;
/// The ECN field in the traffic class.
const ECN_BITS: u8 = 3;

/// The WAN transport between two boxes; see the crate's documentation.
pub struct Transport {
    pub(crate) shared: TransportShared,
    pub(crate) sessions: Sessions,
    pub(crate) addresses: Addresses,
    /// Streams to far boxes: session and slot.
    streams: Map<WireKey, (u32, u16)>,
    /// Streams found astray, with their session; their frames pass.
    astray: Map<WireKey, u32>,
    gates: Vec<Gate>,
    /// Turns of frames that pass and of sessions.
    turns: Turns,
    pub(crate) refused: Option<Refused>,
    /// Number of this life of the box.
    pub(crate) instance: u64,
    pub(crate) cookies: TagKey,
    waiting: Waiting,
    /// Replies to unauthenticated peers that may be sent, as of `answers_at`.
    answers: u64,
    answers_at: Instant,
}

impl Transport {
    /// Creates a transport without sessions.
    ///
    /// # Errors
    /// Returns an error if a field of `config` is outside its range.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let gate = |path: &crate::PathConfig| Gate::new(&path.rate.most().into(), path.burst_bytes);
        let gates = config.paths.iter().map(gate).collect();
        let mut shared = TransportShared::new(config);
        let config = &shared.config;
        Ok(Transport {
            sessions: Sessions::new(config.sessions_max),
            addresses: Addresses::new(config, shared.rng.next_u64()),
            streams: map(shared.rng.next_u64()),
            astray: map(shared.rng.next_u64()),
            gates,
            turns: Turns::default(),
            refused: None,
            instance: shared.rng.next_u64(),
            cookies: TagKey::draw(&mut shared.rng),
            waiting: Waiting::new(config.waiting_bytes_max),
            answers: u64::from(config.answers_per_s),
            answers_at: Instant::ZERO,
            shared,
        })
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Counters since creation.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// A snapshot of each session.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStatus> + '_ {
        self.sessions.iter().map(|session| session.status(self.config()))
    }

    /// Status of the configured far boxes, in their order.
    pub fn far(&self) -> Vec<FarStatus> {
        let box_of = |local| {
            let mut sessions = self.sessions.iter();
            sessions
                .find(|session| session.local() == local && session.is_open())
                .map(|session| session.peer().box_id)
        };
        self.addresses.far(box_of)
    }

    /// The far box that most recently refused this one or was refused.
    pub fn refused(&self) -> Option<Refused> {
        self.refused
    }

    /// Closes all sessions and tells their far boxes. Frames in flight are lost, and traffic passes
    /// untunnelled until the far boxes are found again.
    pub fn close(&mut self, now: Instant) {
        let open: Vec<u32> = self.sessions.iter().map(Session::local).collect();
        for local in open {
            let Some(session) = self.sessions.get_mut(local) else { continue };
            let route = session.route();
            if let Some((header, close)) = session.closing() {
                self.shared.queue_control(ControlDatagram {
                    side: 1,
                    route,
                    header,
                    body: Body::Close(close),
                });
            }
            let pause = self.config().hello_pause;
            self.end(now, local, pause);
        }
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.shared.counters.drops.count(reason);
    }

    /// `true` if another unauthenticated peer may be answered.
    pub(crate) fn may_answer(&mut self, now: Instant) -> bool {
        let rate = u64::from(self.config().answers_per_s);
        let elapsed = u128::from(now.since(self.answers_at).as_ns());
        let earned = (elapsed * u128::from(rate) / 1_000_000_000) as u64;
        if earned > 0 {
            self.answers = (self.answers + earned).min(rate);
            self.answers_at = now;
        }
        let may = self.answers > 0;
        self.answers -= u64::from(may);
        may
    }

    /// Ends a session. Its addresses are searched for again after `wait`.
    pub(crate) fn end(&mut self, now: Instant, local: u32, wait: Duration) {
        let Some(session) = self.sessions.remove(local) else { return };
        self.addresses.forget(now, local, wait);
        self.streams.retain(|_, (of, _)| *of != local);
        self.astray.retain(|_, of| *of != local);
        if session.is_open() {
            self.shared.counters.sessions_closed += 1;
        }
        self.shared.counters.lost_with_session += session.frames();
    }

    fn handle_inner(&mut self, now: Instant, frame: &Frame<'_>) {
        self.shared.counters.inner_frames_in += 1;
        let wait_until = now + self.config().hello_every.times(u64::from(TRIES));
        self.tunnel(now, wait_until, frame);
    }

    /// Puts a frame from inside into its stream if it has one; otherwise the frame waits or passes.
    #[inline]
    fn tunnel(&mut self, now: Instant, wait_until: Instant, frame: &Frame<'_>) {
        let Some((key, clocking, layout)) = tunnelled(frame) else {
            return self.shared.pass(now, INNER, frame);
        };
        let wire_key = WireKey::of(&key);
        let stream = match self.streams.get(&wire_key) {
            Some(&stream) => Stream::Open(stream),
            None => self.open_stream(now, key, wire_key, frame.head, layout),
        };
        let (local, slot) = match stream {
            Stream::Open(stream) => stream,
            Stream::Soon => return self.wait(now, wait_until, frame),
            Stream::None => return self.shared.pass(now, INNER, frame),
        };
        let Some(session) = self.sessions.get_mut(local) else {
            return self.shared.pass(now, INNER, frame);
        };
        let held = hold(&mut self.shared.pool, frame, &layout);
        let counters = &mut self.shared.counters;
        match session.push(now, slot, clocking, layout.into(), held) {
            Ok(()) => {
                counters.tunnelled += 1;
                counters.unpaced += u64::from(clocking == Clocking::None);
            }
            Err(reason) => counters.drops.count(reason),
        }
    }

    /// Holds the frame during the search for a far box, or passes it if there is no room.
    fn wait(&mut self, now: Instant, until: Instant, frame: &Frame<'_>) {
        if self.config().waiting_bytes_max == 0 {
            return self.shared.pass(now, INNER, frame);
        }
        let held = self.shared.pool.hold(frame);
        match self.waiting.push((until, held)) {
            Ok(()) => self.shared.counters.waited += 1,
            Err(held) => self.shared.pass(now, INNER, &held.as_frame()),
        }
    }

    /// Tunnels the frames that waited for a far box that has been found, in their order.
    pub(crate) fn release_waiting(&mut self, now: Instant) {
        for (until, held) in self.waiting.take() {
            self.tunnel(now, until, &held.as_frame());
        }
    }

    /// Opens a stream for frames like this one, if a far box serves their destination.
    fn open_stream(
        &mut self,
        now: Instant,
        key: StreamKey,
        wire_key: WireKey,
        head: &[u8],
        layout: Layout,
    ) -> Stream {
        if self.astray.contains_key(&wire_key) {
            return Stream::None;
        }
        let counters = &mut self.shared.counters;
        let udp = Udp::from(layout);
        let route = control_route(udp.path(head));
        let local = match self.addresses.find(now, route, &mut self.shared.rng) {
            Found::By(local) => local,
            Found::Asking => return Stream::Soon,
            Found::Nobody => return Stream::None,
            Found::Full => {
                counters.address_table_full += 1;
                return Stream::None;
            }
        };
        // Checked once per stream: its frames have the same headers.
        let mut out = [0; HEAD_MAX];
        if encapsulate(
            head,
            udp,
            self.shared.config.port,
            &Header::new(DatagramKind::Data, 0),
            &mut out,
        )
        .is_none()
        {
            counters.untunnelable += 1;
            return Stream::None;
        }
        let Some(session) = self.sessions.get_mut(local).filter(|session| session.is_open()) else {
            return Stream::Soon;
        };
        let Some(slot) = session.open_stream(now, key) else {
            counters.stream_table_full += 1;
            return Stream::None;
        };
        self.streams.insert(wire_key, (local, slot));
        Stream::Open((local, slot))
    }

    fn handle_wan(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.shared.counters.wan_frames_in += 1;
        let Some(outer) = Outer::find(frame.head, self.shared.config.port) else {
            return self.shared.pass(now, side, frame);
        };
        let header = outer.header;
        if !outer.udp.ip_checksum_is_right(frame.head) {
            // Neither check nor ICRC covers the whole of this header, and the receiver would drop
            // it.
            return self.unsound(now, side, frame, &header);
        }
        match header.kind {
            DatagramKind::Data => self.handle_data(now, side, frame, &outer),
            DatagramKind::Parity => self.handle_parity(now, side, frame, &outer),
            DatagramKind::Part => self.handle_part(now, side, frame, &outer),
            _ => self.handle_without_frame(now, side, frame, &outer),
        }
    }

    /// A tunnelled frame.
    #[inline]
    fn handle_data(&mut self, now: Instant, side: Side, frame: &Frame<'_>, outer: &Outer) {
        let header = &outer.header;
        if !Header::is_sound(outer.header_bytes(frame.head), &[]) {
            return self.unsound(now, side, frame, header);
        }
        if header.version != VERSION {
            return self.drop(DropReason::Version);
        }
        let Some(session) = self.sessions.get_mut(header.session).filter(|s| s.is_open()) else {
            return self.drop(DropReason::UnknownSession);
        };
        if session.handle_numbered(now, &mut self.shared, side, frame, outer) {
            let (local, route) = (session.local(), outer.udp.path(frame.head));
            self.learn_of_host(now, &route.reversed(), local);
        }
    }

    /// Notes that a host along `route` has sent a frame through the session `local`. This counts
    /// only behind a seal: without one, anyone can open a session and put any source address into a
    /// frame.
    fn learn_of_host(&mut self, now: Instant, route: &Path, local: u32) {
        if self.config().is_sealed && self.addresses.learn_of_host(now, route, local) {
            self.release_waiting(now);
        }
    }

    fn handle_without_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>, outer: &Outer) {
        let header = outer.header;
        let mut body = [0; BODY_MAX];
        let body = match header.kind {
            DatagramKind::Ping => ping_body_of(frame, outer.udp, &mut body),
            _ => body_of(frame, outer.udp, &mut body),
        };
        let is_sound =
            body.is_some_and(|body| Header::is_sound(outer.header_bytes(frame.head), body));
        let (Some(body), true) = (body, is_sound) else {
            return self.unsound(now, side, frame, &header);
        };
        let return_route = control_route(outer.udp.path(frame.head).reversed());
        if header.kind == DatagramKind::Hello {
            return match Hello::read(body) {
                Some(hello) => self.handle_hello(now, side, &header, &hello, return_route),
                None => self.drop(DropReason::Malformed),
            };
        }
        if header.version != VERSION {
            return self.drop(DropReason::Version);
        }
        let Some(session) = self.sessions.get_mut(header.session).filter(|s| s.is_open()) else {
            return self.handle_stray(now, side, &header, body, return_route);
        };
        let shared = &mut self.shared;
        let serves = |route: &Path, local| self.addresses.is_served(route, local);
        match header.kind {
            DatagramKind::End | DatagramKind::Void => {
                session.handle_numbered(now, shared, side, frame, outer);
            }
            DatagramKind::Ack => match Ack::read(body) {
                Some(ack) => session.handle_ack(now, shared, &header, &ack),
                None => shared.counters.drops.count(DropReason::Malformed),
            },
            DatagramKind::Ping => match Ping::read(body) {
                Some(ping) => {
                    let local = session.local();
                    let return_route = Some(return_route).filter(|route| serves(route, local));
                    if !session.handle_ping(now, shared, side, (&header, &ping), return_route) {
                        self.end(now, local, Duration::ZERO);
                    }
                }
                None => shared.counters.drops.count(DropReason::Malformed),
            },
            DatagramKind::Close => match Close::read(body) {
                Some(close) if session.remote() == Some(close.session) => {
                    let (local, pause) = (session.local(), shared.config.hello_pause);
                    self.end(now, local, pause);
                }
                _ => shared.counters.drops.count(DropReason::Unasked),
            },
            DatagramKind::Data
            | DatagramKind::Parity
            | DatagramKind::Part
            | DatagramKind::Hello => {}
        }
    }

    fn handle_part(&mut self, now: Instant, side: Side, frame: &Frame<'_>, outer: &Outer) {
        let header = &outer.header;
        let Some((extent, held)) = take_piece(&mut self.shared.pool, frame, outer) else {
            return self.unsound(now, side, frame, header);
        };
        if header.version != VERSION {
            return self.drop(DropReason::Version);
        }
        let Some(session) = self.sessions.get_mut(header.session).filter(|s| s.is_open()) else {
            return self.drop(DropReason::UnknownSession);
        };
        if let Some(route) = session.handle_part(now, &mut self.shared, side, outer, (extent, held))
        {
            let local = session.local();
            self.learn_of_host(now, &route.reversed(), local);
        }
    }

    /// Handles a datagram that fails its check: damaged in transit, or not of this transport.
    fn unsound(&mut self, now: Instant, side: Side, frame: &Frame<'_>, header: &Header) {
        let is_ours = self.sessions.get_mut(header.session).is_some();
        if is_ours { self.drop(DropReason::Corrupted) } else { self.shared.pass(now, side, frame) }
    }

    fn handle_parity(&mut self, now: Instant, side: Side, frame: &Frame<'_>, outer: &Outer) {
        let header = &outer.header;
        let body = ParityBody::find(frame, outer.udp, header);
        let bytes = outer.header_bytes(frame.head);
        let Some(body) = body.filter(|body| body.is_sound(bytes)) else {
            return self.unsound(now, side, frame, header);
        };
        if header.version != VERSION {
            return self.drop(DropReason::Version);
        }
        match self.sessions.get_mut(header.session).filter(|s| s.is_open()) {
            Some(session) => session.handle_parity(now, &mut self.shared, side, outer, &body),
            None => self.drop(DropReason::UnknownSession),
        }
    }

    /// Replies to a PING of an unknown session, so that the peer need not wait for a timeout.
    fn handle_stray(
        &mut self,
        now: Instant,
        side: Side,
        header: &Header,
        body: &[u8],
        route: Path,
    ) {
        self.drop(DropReason::UnknownSession);
        if self.sessions.get_mut(header.session).is_some() {
            // The session is being opened: the datagram overtook the ACCEPT.
            return;
        }
        let ping = if header.kind == DatagramKind::Ping { Ping::read(body) } else { None };
        let Some(ping) = ping.filter(|ping| ping.step == PingStep::Ask) else { return };
        if !self.may_answer(now) {
            return self.drop(DropReason::TooManyQuestions);
        }
        self.shared.counters.answers_sent += 1;
        let answer = Ping { step: PingStep::Unknown, session: 0, ..ping };
        let header = Header { path: header.path, ..Header::new(DatagramKind::Ping, ping.session) };
        self.shared.queue_control(ControlDatagram {
            side,
            route,
            header,
            body: Body::Ping(answer),
        });
    }

    fn send_inner(&mut self, now: Instant, out: &mut dyn Transmit) {
        while !self.shared.to_inner.is_empty() {
            let takes_other = self.shared.to_inner.has_other() && out.other_room(INNER) > 0;
            let takes = [out.room(INNER) > 0, takes_other];
            let Some(next) = self.shared.to_inner.pop(now, takes) else { return };
            self.shared.counters.inner_frames_out += 1;
            match next {
                Inward::Other(frame) => frame.transmit(INNER, out),
                Inward::Roce(frame, origin) => {
                    out.transmit_held(INNER, &frame);
                    let Origin::Session { local, cost } = origin else { continue };
                    self.shared.counters.delivered += 1;
                    if let Some(session) = self.sessions.get_mut(local) {
                        session.gone(cost);
                    }
                }
            }
        }
    }

    fn send_letters(&mut self, now: Instant, out: &mut dyn Transmit) {
        for _ in 0..self.shared.control_queue.len() {
            let Some(control) = self.shared.control_queue.pop_front() else { return };
            if out.room(control.side) == 0 {
                self.shared.control_queue.push_back(control);
                continue;
            }
            let datagram = control.datagram(self.shared.config.port);
            self.send_wan(now, control.side, &datagram.frame(), out);
        }
    }

    fn send_wan(&mut self, now: Instant, side: Side, frame: &Frame<'_>, out: &mut dyn Transmit) {
        self.gates[side - 1].take(now, wire_bytes(frame.len()));
        self.shared.counters.wan_frames_out += 1;
        out.transmit(side, frame);
    }

    /// Sends frames that pass and those of sessions. Both take turns on the path by which frames
    /// pass, but RoCEv2 frames that pass come first: later frames of their flows may be tunnelled.
    fn send_in_turn(&mut self, now: Instant, out: &mut dyn Transmit) {
        if !self.shared.pass_out.is_empty() {
            let side = self.passing_side();
            loop {
                let waits = !self.shared.pass_out.is_empty();
                let is_roce = self.shared.pass_out.has_roce();
                let class = if is_roce { Some(PASSED) } else { self.turns.choose([waits, true]) };
                if !waits {
                    break;
                }
                if class == Some(PASSED) {
                    if !self.may_send(now, side, out) {
                        break;
                    }
                    let Some(frame) = self.shared.pass_out.pop(now) else { continue };
                    let bytes = wire_bytes(frame.frame_len());
                    if !is_roce {
                        self.turns.take(bytes);
                    }
                    self.gates[side - 1].take(now, bytes);
                    self.shared.counters.wan_frames_out += 1;
                    frame.transmit(side, out);
                } else {
                    let mut turn = Turn { path: side - 1, left: self.turns.left() };
                    self.turns.take(turn.left);
                    self.send_sessions(now, &mut turn, out);
                    if turn.left > 0 && !self.may_send(now, side, out) {
                        return self.turns.give_back(turn.left);
                    }
                }
            }
        }
        self.send_sessions(now, &mut Turn { path: 0, left: u64::MAX }, out);
    }

    fn may_send(&mut self, now: Instant, side: Side, out: &mut dyn Transmit) -> bool {
        self.gates[side - 1].is_open(now) && out.room(side) > 0
    }

    fn send_sessions(&mut self, now: Instant, turn: &mut Turn, out: &mut dyn Transmit) {
        for session in self.sessions.iter_mut() {
            session.transmit(now, &mut self.shared, &mut self.gates, turn, out);
        }
    }

    /// Side by which frames pass: that of the first path that answers to every reachable far box,
    /// or side 1.
    fn passing_side(&self) -> Side {
        let answers = |path: &usize| {
            let mut reached = self.sessions.iter().filter(|session| session.is_up());
            reached.all(|session| session.path_is_up(*path))
        };
        (0..self.gates.len()).find(answers).map_or(1, |path| path + 1)
    }
}

/// How to handle a frame of a stream that is not in the table.
enum Stream {
    /// Its session and slot.
    Open((u32, u16)),
    /// A search for the far box is in progress, or a session is about to open.
    Soon,
    /// No far box serves its destination.
    None,
}

/// Route of control datagrams: that of the hosts' frames, with the transport's own hop limit, as a
/// forwarded frame's may be exhausted, and without the ECN mark.
fn control_route(route: Path) -> Path {
    Path { hop_limit: HOP_LIMIT, traffic_class: route.traffic_class & !ECN_BITS, ..route }
}

/// Stream of a frame to be tunnelled, the pacing of its sender, and the offsets of its headers.
#[inline]
fn tunnelled(frame: &Frame<'_>) -> Option<(StreamKey, Clocking, Layout)> {
    if frame.trailer.is_empty() || !frame.may_be_kept() {
        return None;
    }
    let Ok(Split::Roce { layout, payload_len, pad }) = split(frame.head, frame.len()) else {
        return None;
    };
    let is_whole = layout.payload == frame.head.len()
        && payload_len == frame.payload.len()
        && pad + ICRC_LEN == frame.trailer.len();
    let packet = Packet::parse(frame.head).ok().flatten().filter(|_| is_whole)?;
    let (key, clocking) = StreamKey::of(&packet)?;
    // The far box drops a frame with a wrong header checksum, and hands the rest to an accelerator
    // as checked.
    frame.checksums_are_right_at(&layout).then_some((key, clocking, layout))
}

/// Holds a frame with its ICRC computed. The far box checks the ICRC, and a port could not compute
/// it for the frame in its tunnel. A simulated frame without bytes needs none.
#[inline]
fn hold(pool: &mut FramePool, frame: &Frame<'_>, layout: &Layout) -> FrameBuf {
    let held = pool.hold(frame);
    let Trailer::Sealed { pad_len } = frame.trailer else { return held };
    let inner = held.as_frame();
    let Payload::Shared(_) = inner.payload else { return held };
    let pad = [0; 3];
    let icrc = icrc::of(inner.head, layout, held.payload(), &pad[..usize::from(pad_len)]);
    pool.hold(&Frame { trailer: Trailer::Received { pad, pad_len, icrc }, ..inner })
}

impl Node for Transport {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        if side == INNER {
            self.handle_inner(now, frame);
        } else if side <= self.gates.len() {
            self.handle_wan(now, side, frame);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        let mut over = Vec::new();
        let mut opening = Vec::new();
        for session in self.sessions.iter_mut() {
            if session.opening().is_some() {
                opening.push(session.local());
            } else if !session.tick(now, &mut self.shared) {
                over.push(session.local());
            }
        }
        let Config { hello_every, hello_pause, .. } = *self.config();
        for local in opening {
            if !self.press_on(now, local) {
                // The far box exists, because it answered the HELLO; the answer may have been
                // damaged.
                self.end(now, local, hello_every);
            }
        }
        for local in over {
            self.end(now, local, hello_pause);
        }
        for key in std::mem::take(&mut self.shared.streams_ended) {
            self.streams.remove(&key);
        }
        for key in std::mem::take(&mut self.shared.streams_astray) {
            let stream = self.streams.remove(&key);
            self.astray.extend(stream.map(|(local, _)| (key, local)));
        }
        while let Some(held) = self.waiting.pop_due(now) {
            self.shared.pass(now, INNER, &held.as_frame());
        }
        self.ask(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.gates.iter_mut().for_each(Gate::stop_waiting);
        self.send_inner(now, out);
        self.send_letters(now, out);
        self.send_in_turn(now, out);
        self.shared.count_late();
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let pacing = self.gates.iter().filter_map(Gate::waiting_until).min();
        let pacing = pacing.map(|at| Deadline { at, reason: "pacing" });
        let asking = self.addresses.next_at().into_iter().chain(self.waiting.next_at()).min();
        let asking = asking.map(|at| Deadline { at, reason: "looking for a far box" });
        let sessions = self.sessions.iter().map(|session: &Session| session.deadline(&self.shared));
        sessions.fold(Deadline::earliest(pacing, asking), Deadline::earliest)
    }

    fn intake(&self, side: Side) -> usize {
        if side != INNER {
            return usize::MAX;
        }
        let open = self.sessions.iter().filter(|session| session.is_up() || session.is_beginning());
        let queue_max = self.config().queue_bytes_max;
        let free = open.map(|session| session.intake_bytes(queue_max)).min();
        if free.is_none() && self.sessions.iter().any(Session::is_about_to_open) {
            // A round trip later, its memory bounds the intake and nothing is lost.
            return 0;
        }
        free.map_or(usize::MAX, |free| usize::try_from(free / FRAME_COST).unwrap_or(usize::MAX))
    }

    fn other_intake(&self, _side: Side) -> usize {
        usize::MAX
    }
}
