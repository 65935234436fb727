//! The order in which a session sends: control datagrams, parity, data.

use super::Session;
use crate::format::{BODY_MAX, Datagram, DatagramKind, Header, Ping, PingStep};
use crate::pace::Pace;
use crate::shared::TransportShared;
use longhaul_cc::{Gate, wire_bytes};
use longhaul_node::{Frame, Transmit};
use longhaul_units::Instant;

/// Bytes that sessions may send on one path before it is the turn of frames that pass.
pub(crate) struct Turn {
    pub(crate) path: usize,
    pub(crate) left: u64,
}

/// Context of a transmission.
pub(super) struct Sending<'a> {
    pub(super) now: Instant,
    /// The far box's number of the session.
    pub(super) remote: u32,
    pub(super) shared: &'a mut TransportShared,
    /// Gates of the paths.
    pub(super) gates: &'a mut [Gate],
    pub(super) turn: &'a mut Turn,
    pub(super) out: &'a mut dyn Transmit,
}

impl Sending<'_> {
    #[inline]
    pub(super) fn has_room(&mut self, path: usize) -> bool {
        self.out.room(path + 1) > 0
    }

    /// Sends `frame` on `path` and charges the path's gate. Returns its bytes on the wire.
    #[inline]
    pub(super) fn transmit(&mut self, path: usize, frame: &Frame<'_>) -> u64 {
        let bytes = wire_bytes(frame.len());
        self.gates[path].take(self.now, bytes);
        if path == self.turn.path {
            self.turn.left = self.turn.left.saturating_sub(bytes);
        }
        self.shared.counters.wan_frames_out += 1;
        self.out.transmit(path + 1, frame);
        bytes
    }
}

impl Session {
    /// Sends everything that is due and for which there is room and `turn` lasts.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        gates: &mut [Gate],
        turn: &mut Turn,
        out: &mut dyn Transmit,
    ) {
        let Some(remote) = self.remote() else { return };
        self.polled_at = now;
        let paces = self.tx_paths.iter_mut().filter_map(|tx_path| tx_path.pace.as_mut());
        paces.for_each(Pace::stop_waiting);
        let to = &mut Sending { now, remote, shared, gates, turn, out };
        self.send_control(to);
        loop {
            let has_data = self.out.has_next(now);
            if !has_data {
                let paths = self.tx_paths.iter_mut().zip(to.gates.iter());
                paths.for_each(|(tx_path, gate)| tx_path.note_room(now, gate));
            }
            let Some((path, is_parity)) = self.choose(to, has_data) else { return };
            if is_parity {
                self.send_parity(to, path);
            } else if !self.send_next(to, path) {
                return;
            }
        }
    }

    /// Next path, round robin, that is up, may send and has room; and whether it sends parity.
    fn choose(&mut self, to: &mut Sending<'_>, has_data: bool) -> Option<(usize, bool)> {
        let span_max = u64::from(to.shared.config.numbers_max) / 2;
        for _ in 0..self.tx_paths.len() {
            let path = self.next_path;
            self.next_path = (self.next_path + 1) % self.tx_paths.len();
            let tx_path = &mut self.tx_paths[path];
            let takes_data = has_data && tx_path.flight.span() < span_max;
            let is_parity = tx_path.parity.is_due();
            let is_turn = path != to.turn.path || to.turn.left > 0;
            let can = tx_path.is_up && is_turn && (takes_data || is_parity);
            let is_urgent = self.out.has_repeat();
            if can
                && to.gates[path].is_open(to.now)
                && tx_path.is_open(to.now, is_urgent)
                && to.has_room(path)
            {
                return Some((path, is_parity));
            }
        }
        None
    }

    fn send_control(&mut self, to: &mut Sending<'_>) {
        let (now, config) = (to.now, &to.shared.config);
        let is_overdue = self.tx_paths.iter().any(|tx_path| tx_path.is_overdue(now, config));
        for path in 0..self.tx_paths.len() {
            while to.has_room(path)
                && let Some(ping) = self.pongs[path].pop_front()
            {
                let control = self.control(DatagramKind::Ping, to.remote);
                let header = Header { path: ping_path(&ping), ..control };
                let pong = Ping { step: PingStep::Answer, session: self.local, ..ping };
                self.send(to, path, &header, |body| pong.write(body));
            }
            let (tx_path, config) = (&self.tx_paths[path], &to.shared.config);
            // Another path shows whether the far box runs.
            let is_witness = is_overdue && tx_path.is_idle(now, config);
            if (is_witness || tx_path.wants_ping(now, config)) && to.has_room(path) {
                self.send_ping(to, path);
            }
            self.send_probes(to, path);
        }
        for about in 0..self.rx_paths.len() {
            self.send_ack(to, about);
        }
    }

    fn send_ping(&mut self, to: &mut Sending<'_>, path: usize) {
        let (header, ping) = self.ask_path(to.now, to.shared, to.remote, path);
        self.send(to, path, &header, |body| ping.write(body));
    }

    /// Acknowledges arrivals on the far box's path `about`, if an acknowledgement is due.
    fn send_ack(&mut self, to: &mut Sending<'_>, about: usize) {
        let rx_path = &self.rx_paths[about];
        let back = rx_path.side - 1;
        let path = if self.tx_paths.get(back).is_some_and(|tx_path| tx_path.is_up) {
            back
        } else {
            self.tx_paths.iter().position(|tx_path| tx_path.is_up).unwrap_or(back)
        };
        let delay = self.ack_delay(&to.shared.config);
        let ack_at = rx_path.arrivals.ack_at(delay, to.shared.config.ack_every);
        let is_due = ack_at.is_some_and(|at| at <= to.now);
        if !(is_due || rx_path.ack_is_due) || !to.has_room(path) {
            return;
        }
        let room = self.incoming.tell_room();
        let rx_path = &mut self.rx_paths[about];
        rx_path.ack_is_due = false;
        let ack = rx_path.arrivals.report(to.now, delay, room);
        to.shared.counters.acks_sent += 1;
        let header = Header { path: about as u8, ..self.control(DatagramKind::Ack, to.remote) };
        self.send(to, path, &header, |body| ack.write(body));
    }

    /// Sends a control datagram.
    fn send(
        &mut self,
        to: &mut Sending<'_>,
        path: usize,
        header: &Header,
        fill: impl FnOnce(&mut [u8; BODY_MAX]) -> usize,
    ) {
        let datagram = Datagram::new(&self.route, to.shared.config.port, header, fill);
        let bytes = to.transmit(path, &datagram.frame());
        self.tx_paths[path].take(to.now, bytes);
    }
}

/// Path that a PING tests. The answer names it, whatever side the PING came by.
fn ping_path(ping: &Ping) -> u8 {
    (ping.nonce & 0xf) as u8
}
