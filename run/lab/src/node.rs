//! A lab as one node: its hosts and the fabric between them.

use crate::spec::HostName;
use longhaul_eswitch::{DropReason, EmbeddedSwitch, Route};
use longhaul_node::{Deadline, Frame, FrameBuf, FramePool, Node, Side, Transmit};
use longhaul_units::Instant;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

/// Numbering of a lab node's sides: consecutive slots per host.
#[derive(Clone, Copy, Debug)]
pub struct Sides {
    slot_bits: u32,
}

impl Sides {
    /// For hosts with `slots` programs each, a power of two.
    pub fn new(slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "{slots} programs");
        Sides { slot_bits: slots.ilog2() }
    }

    /// Program slots per host.
    pub fn slots(self) -> usize {
        1 << self.slot_bits
    }

    /// The side of the program in `slot` of `host`.
    #[inline]
    pub fn of(self, host: HostName, slot: usize) -> Side {
        host.index() << self.slot_bits | slot
    }

    /// The host and the slot of the program on `side`.
    #[inline]
    pub fn program_at(self, side: Side) -> (HostName, usize) {
        (HostName::of_index(side >> self.slot_bits), side & (self.slots() - 1))
    }
}

/// Hosts joined by `fabric`, a node with one side per host.
pub struct LabNode<F> {
    hosts: Vec<Host>,
    sides: Sides,
    pub fabric: F,
}

/// A host: its embedded switch, and frames that wait for its programs.
struct Host {
    eswitch: EmbeddedSwitch,
    pool: FramePool,
    /// By slot.
    waiting: Vec<Waiting>,
    /// Number of slots with waiting frames.
    backlog: usize,
    receive_buffer_bytes: usize,
    counters: HostCounters,
}

/// Frames that wait for one program.
#[derive(Default)]
struct Waiting {
    frames: VecDeque<FrameBuf>,
    bytes: usize,
}

/// Counters of a host's switch, cumulative.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct HostCounters {
    /// Frames that programs sent.
    pub tx_frames: u64,
    /// Frames that went to programs.
    pub rx_frames: u64,
    /// Frames to a function number without a running program.
    pub drops_no_function: u64,
    /// Frames that are not RoCEv2.
    pub drops_not_roce: u64,
    /// Frames dropped because a program's receive buffer was full.
    pub drops_receive_buffer: u64,
}

impl Host {
    fn new(host: HostName, slots: usize, receive_buffer_bytes: usize) -> Self {
        let ip = IpAddr::V4(host.ip());
        Host {
            // Random; the order of a hash table affects no reproducible run.
            eswitch: EmbeddedSwitch::new(ip, RandomState::new().hash_one(ip)),
            pool: FramePool::new(),
            waiting: (0..slots).map(|_| Waiting::default()).collect(),
            backlog: 0,
            receive_buffer_bytes,
            counters: HostCounters::default(),
        }
    }

    /// Queues a frame for the program in `slot`.
    fn wait(&mut self, slot: usize, frame: &Frame<'_>) {
        let waiting = &mut self.waiting[slot];
        if waiting.bytes > self.receive_buffer_bytes {
            self.counters.drops_receive_buffer += 1;
            return;
        }
        let held = self.pool.hold(frame);
        if waiting.frames.is_empty() {
            self.backlog += 1;
        }
        waiting.bytes += held.footprint();
        waiting.frames.push_back(held);
    }

    /// Takes a frame for every program.
    fn deliver_to_all(&mut self, frame: &Frame<'_>) {
        let slots = self.waiting.len();
        // All programs share one copy.
        let held = self.pool.hold(frame);
        for slot in self.eswitch.attached().filter(|slot| *slot < slots) {
            self.counters.rx_frames += 1;
            self.wait(slot, &held.as_frame());
        }
    }

    /// Delivers a frame along `route`, which stays inside the host.
    fn deliver(&mut self, route: Route, frame: &Frame<'_>, direct: &mut impl FnMut(usize) -> bool) {
        match route {
            Route::Function(slot) if slot < self.waiting.len() => {
                self.counters.rx_frames += 1;
                if !self.waiting[slot].frames.is_empty() || !direct(slot) {
                    self.wait(slot, frame);
                }
            }
            Route::AllFunctions | Route::WireAndAllFunctions => self.deliver_to_all(frame),
            Route::Drop(DropReason::NotRoce) => self.counters.drops_not_roce += 1,
            Route::Drop(DropReason::RefusedByOthersYet) => {}
            Route::Wire | Route::Function(_) | Route::Drop(DropReason::NoFunction) => {
                self.counters.drops_no_function += 1;
            }
        }
    }

    /// Sends waiting frames, as far as the programs accept them.
    fn drain(&mut self, first_side: Side, out: &mut dyn Transmit) {
        if self.backlog == 0 {
            return;
        }
        for (slot, waiting) in self.waiting.iter_mut().enumerate() {
            if waiting.frames.is_empty() {
                continue;
            }
            let mut room = out.room(first_side + slot);
            while room > 0 {
                let Some(frame) = waiting.frames.pop_front() else { break };
                waiting.bytes -= frame.footprint();
                out.transmit(first_side + slot, &frame.as_frame());
                room -= 1;
            }
            if waiting.frames.is_empty() {
                self.backlog -= 1;
            }
        }
    }
}

impl<F: Node> LabNode<F> {
    /// A lab of `hosts` around `fabric`, without programs. Up to `receive_buffer_bytes` of frames
    /// wait for each program, which may not be scheduled for a while; further frames are dropped.
    pub fn new(
        hosts: impl Iterator<Item = HostName>,
        sides: Sides,
        fabric: F,
        receive_buffer_bytes: usize,
    ) -> Self {
        let hosts =
            hosts.map(|host| Host::new(host, sides.slots(), receive_buffer_bytes)).collect();
        LabNode { hosts, sides, fabric }
    }

    /// The numbering of its sides.
    pub fn sides(&self) -> Sides {
        self.sides
    }

    /// Records whether a program runs in `slot` of `host`.
    pub fn set_attached(&mut self, host: HostName, slot: usize, attached: bool) {
        let host = &mut self.hosts[host.index()];
        if host.eswitch.is_attached(slot) == attached {
            return;
        }
        host.eswitch.set_attached(slot, attached);
        if !attached && !host.waiting[slot].frames.is_empty() {
            // The next program in this slot starts with an empty buffer.
            host.waiting[slot] = Waiting::default();
            host.backlog -= 1;
        }
    }

    /// Counters of `host`.
    pub fn counters(&self, host: HostName) -> HostCounters {
        self.hosts[host.index()].counters
    }

    /// Programs attached to `host`.
    pub fn programs(&self, host: HostName) -> usize {
        self.hosts[host.index()].eswitch.attached().count()
    }

    /// Frames that wait for programs of `host`.
    pub fn waiting(&self, host: HostName) -> usize {
        self.hosts[host.index()].waiting.iter().map(|waiting| waiting.frames.len()).sum()
    }
}

/// Sink of the fabric's frames: each side leads to a host, whose embedded switch knows the program.
struct ToPrograms<'a> {
    hosts: &'a mut [Host],
    sides: Sides,
    out: &'a mut dyn Transmit,
}

impl Transmit for ToPrograms<'_> {
    /// A host's receive buffer holds frames that its programs do not accept.
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        let (sides, name) = (self.sides, HostName::of_index(side));
        let host = &mut self.hosts[side];
        let route = host.eswitch.from_wire(frame);
        let out = &mut *self.out;
        host.deliver(route, frame, &mut |slot| {
            let side = sides.of(name, slot);
            let room = out.room(side) > 0;
            if room {
                out.transmit(side, frame);
            }
            room
        });
    }
}

impl<F: Node> Node for LabNode<F> {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        let (name, slot) = self.sides.program_at(side);
        let host = &mut self.hosts[name.index()];
        // A program that sends is attached, even if the next check of its port is still to come.
        host.eswitch.set_attached(slot, true);
        host.counters.tx_frames += 1;
        let route = host.eswitch.from_function(slot, frame);
        if route != Route::Wire {
            host.deliver(route, frame, &mut |_| false);
        }
        if matches!(route, Route::Wire | Route::WireAndAllFunctions) {
            self.fabric.handle_frame(now, name.index(), frame);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.fabric.handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        let sides = self.sides;
        for (index, host) in self.hosts.iter_mut().enumerate() {
            host.drain(sides.of(HostName::of_index(index), 0), out);
        }
        self.fabric.poll_transmit(now, &mut ToPrograms { hosts: &mut self.hosts, sides, out });
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        self.fabric.poll_timeout()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_link::{Link, LinkConfig};
    use longhaul_node::{Payload, Trailer};
    use longhaul_units::{Psn, Qpn};
    use longhaul_wire::{Bth, Deth, Head, MacAddr, Opcode, Path, PathTemplate};
    use std::net::Ipv4Addr;

    /// Two hosts with four programs each, joined by a link of zero delay.
    fn lab() -> LabNode<Link> {
        let hosts = [HostName::A, HostName::B];
        let link = Link::new(LinkConfig::default()).unwrap();
        LabNode::new(hosts.into_iter(), Sides::new(4), link, 1 << 20)
    }

    fn send(lab: &mut LabNode<Link>, side: Side, destination: Ipv4Addr, qpn: u32) {
        let template = PathTemplate::new(&Path {
            source_mac: HostName::A.mac(),
            destination_mac: MacAddr([0x01, 0, 0x5e, 1, 2, 3]),
            vlan: None,
            source_ip: HostName::A.ip().into(),
            destination_ip: destination.into(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc000,
        });
        let mut head =
            Head::begin(&template, &Bth::new(Opcode::UD_SEND_ONLY, Qpn::new(qpn), Psn::new(0)));
        head.push_deth(&Deth { qkey: 7, reserved_8: 0, source_qp: Qpn::new(20) });
        head.finish(&template, 4);
        let (payload, trailer) = (Payload::Bytes(&[1, 2, 3, 4]), Trailer::Sealed { pad_len: 0 });
        lab.handle_frame(Instant::ZERO, side, &Frame { head: head.bytes(), payload, trailer });
    }

    struct Reached(Vec<Side>);

    impl Transmit for Reached {
        fn room(&mut self, _: Side) -> usize {
            64
        }
        fn transmit(&mut self, side: Side, _: &Frame<'_>) {
            self.0.push(side);
        }
    }

    /// The sides that receive frames. A second poll sends the frames that wait for programs.
    fn reached(lab: &mut LabNode<Link>) -> Vec<Side> {
        let mut out = Reached(Vec::new());
        for _ in 0..2 {
            lab.poll_transmit(Instant::ZERO, &mut out);
        }
        out.0.sort_unstable();
        out.0
    }

    #[test]
    fn sides_and_programs_correspond() {
        let sides = Sides::new(4);
        let host = HostName::of_index(25);
        assert_eq!(sides.of(host, 3), 103);
        assert_eq!(sides.program_at(103), (host, 3));
    }

    #[test]
    fn a_multicast_reaches_each_program_of_each_host_once() {
        let mut lab = lab();
        for (host, slot) in [(HostName::A, 0), (HostName::A, 2), (HostName::B, 1), (HostName::B, 3)]
        {
            lab.set_attached(host, slot, true);
        }
        send(&mut lab, 2, Ipv4Addr::new(224, 1, 2, 3), 0xff_ffff);
        assert_eq!(reached(&mut lab), [0, 2, 5, 7], "the sender's own program too");
        assert_eq!(
            (lab.counters(HostName::A).tx_frames, lab.counters(HostName::A).rx_frames),
            (1, 2)
        );
        assert_eq!((lab.waiting(HostName::A), lab.waiting(HostName::B)), (0, 0));
    }

    #[test]
    fn a_datagram_reaches_the_program_whose_number_it_has() {
        let mut lab = lab();
        lab.set_attached(HostName::B, 3, true);
        send(&mut lab, 0, HostName::B.ip(), 3 << 18 | 20);
        assert_eq!(reached(&mut lab), [7]);
        send(&mut lab, 0, HostName::B.ip(), 2 << 18 | 20);
        assert!(reached(&mut lab).is_empty(), "nobody is there");
        assert_eq!(lab.counters(HostName::B).drops_no_function, 1);
    }
}
