//! A NIC with a minimum time per received packet, and a buffer for packets that arrive sooner.

use super::Port;
use crate::packed::{Packer, Ring};
use crate::profile::NicProfile;
use longhaul_cc::wire_bytes;
use longhaul_node::{Deadline, Frame, Transmit};
use longhaul_switch::{PauseCounters, Pauser, PfcConfig};
use longhaul_units::{BitRate, Duration, Instant};
use longhaul_wire::{MacAddr, Packet, Pause, Verb};

/// Returns whether a message of this frame takes a receive.
fn takes_receive(frame: &Frame<'_>) -> bool {
    let Ok(Some(packet)) = Packet::parse(frame.head) else { return false };
    let opcode = packet.bth().opcode;
    packet.immediate().is_some() || (opcode.verb() == Some(Verb::Send) && opcode.ends_message())
}

/// The receive side of a NIC. Packets of all priorities wait in one buffer.
pub(crate) struct Intake {
    /// Minimum time to the next packet: after any, and after one that takes a receive of a shared
    /// receive queue.
    gaps: [Duration; 2],
    free_at: Instant,
    packer: Packer,
    ring: Ring,
    /// Counts waiting packets, and pauses the other end of the link.
    pauser: Pauser,
    source: MacAddr,
    /// A pause frame waits for room, which is not a deadline.
    is_blocked: bool,
    /// Packets dropped for lack of room.
    pub discarded: u64,
}

impl Intake {
    /// The receive side of a NIC that is slower than its link.
    pub fn of(profile: &NicProfile, port: &Port, source: MacAddr) -> Option<Box<Self>> {
        let gap = Duration::from_ns(profile.receive_packet_ns);
        let shared_gap =
            Duration::from_ns(if profile.srq_depth > 0 { profile.srq_message_ns } else { 0 });
        let is_slow = gap.max(shared_gap) > Duration::ZERO;
        let rate = port.rate.or(BitRate::from_bps(profile.rate_bps)).filter(|_| is_slow)?;
        let room = profile.receive_buffer_bytes;
        let xoff = if profile.pfc { room.saturating_sub(port.headroom_bytes) } else { u64::MAX };
        let pauser = Pauser::new(PfcConfig::ROCE_PRIORITY, rate, [xoff / 2, xoff, room]);
        Some(Box::new(Intake::new([gap, shared_gap], pauser, source)))
    }

    /// A receive side with the minimum time to the next packet after any packet, and after one that
    /// takes a receive of a shared receive queue.
    pub fn new(gaps: [Duration; 2], pauser: Pauser, source: MacAddr) -> Self {
        Intake {
            gaps,
            free_at: Instant::ZERO,
            packer: Packer::default(),
            ring: Ring::default(),
            pauser,
            source,
            is_blocked: false,
            discarded: 0,
        }
    }

    /// Handles an arriving frame. Returns `true` if it waits or is dropped, `false` if it is
    /// received at once.
    pub fn hold(&mut self, now: Instant, frame: &Frame<'_>) -> bool {
        // MAC control frames never wait.
        if Pause::is_mac_control(frame.head) {
            return false;
        }
        let [gap, shared] = self.gaps;
        let takes_shared = shared > gap && takes_receive(frame);
        let gap = if takes_shared { shared } else { gap };
        if self.ring.len() == 0 && self.free_at <= now {
            self.free_at = now + gap;
            return false;
        }
        if !self.pauser.take(wire_bytes(frame.len())) {
            self.discarded += 1;
            return true;
        }
        let (packet, news) = self.packer.pack(frame, self.free_at, false);
        self.ring.push(packet, news);
        self.free_at += gap;
        true
    }

    /// Receives the next packet, if it is due.
    pub fn release(&mut self, now: Instant, mut take: impl FnMut(&Frame<'_>)) -> bool {
        if self.ring.next_due().is_none_or(|due| due > now) {
            return false;
        }
        let pauser = &mut self.pauser;
        self.ring.pop(|frame| {
            pauser.release(wire_bytes(frame.len()));
            take(frame);
        });
        true
    }

    /// Sends pending pause frames, before all other frames.
    pub fn send_pause(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.is_blocked = false;
        if self.pauser.poll_timeout().is_none_or(|deadline| deadline.at > now) {
            return;
        }
        if out.room(0) == 0 {
            self.is_blocked = true;
        } else if let Some(pause) = self.pauser.poll_pause(now) {
            out.transmit(0, &Frame::opaque(&pause.write(self.source)));
        }
    }

    /// The next deadline.
    pub fn poll_timeout(&self) -> Option<Deadline> {
        let next = self.ring.next_due().map(|at| Deadline { at, reason: "receive" });
        let pause = if self.is_blocked { None } else { self.pauser.poll_timeout() };
        Deadline::earliest(next, pause)
    }

    /// Flow control's counters.
    pub fn counters(&self) -> PauseCounters {
        self.pauser.counters()
    }
}
