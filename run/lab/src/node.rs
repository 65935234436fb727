//! A lab as one node: its hosts and the fabric between them.

use crate::spec::HostName;
use longhaul_eswitch::{DropReason, EmbeddedSwitch, Route};
use longhaul_node::{Deadline, Frame, FrameBuf, FramePool, Node, Side, Transmit};
use longhaul_units::Instant;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

/// Numbering of a lab node's sides: consecutive program slots per host, and behind them the kernel
/// of each host.
#[derive(Clone, Copy, Debug)]
pub struct Sides {
    slot_bits: u32,
    /// The kernel of the first host.
    first_kernel: Side,
}

/// What is at a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// The program in this slot of its host.
    Program(usize),
    /// The kernel of the host.
    Kernel,
}

impl Sides {
    /// For `hosts` hosts with `slots` programs each, a power of two.
    pub fn new(hosts: usize, slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "{slots} programs");
        Sides { slot_bits: slots.ilog2(), first_kernel: hosts * slots }
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

    /// The side of the kernel of `host`.
    #[inline]
    pub fn of_kernel(self, host: HostName) -> Side {
        self.first_kernel + host.index()
    }

    /// The host at `side`, and which of its occupants.
    #[inline]
    pub fn at(self, side: Side) -> (HostName, Occupant) {
        match side.checked_sub(self.first_kernel) {
            Some(index) => (HostName::of_index(index), Occupant::Kernel),
            None => {
                let slot = side & (self.slots() - 1);
                (HostName::of_index(side >> self.slot_bits), Occupant::Program(slot))
            }
        }
    }

    /// The side of one of the queues of `host`: those of its programs by slot, then its kernel's.
    #[inline]
    fn of_queue(self, host: HostName, queue: usize) -> Side {
        if queue < self.slots() { self.of(host, queue) } else { self.of_kernel(host) }
    }
}

/// Hosts joined by `fabric`, a node with one side per host.
pub struct LabNode<F> {
    hosts: Vec<Host>,
    sides: Sides,
    pub fabric: F,
}

/// A host: its embedded switch, and frames that wait for its programs and its kernel.
struct Host {
    eswitch: EmbeddedSwitch,
    pool: FramePool,
    /// By slot, then for the kernel.
    waiting: Vec<Waiting>,
    /// Number of these queues with frames.
    backlog: usize,
    receive_buffer_bytes: usize,
    counters: HostCounters,
}

/// Frames that wait for one program, or for the kernel.
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
    /// Malformed RoCEv2, and on a host without a kernel side frames that are not RoCEv2.
    pub drops_not_roce: u64,
    /// Frames dropped because the receive buffer of a program, or of the kernel, was full.
    pub drops_receive_buffer: u64,
    /// Frames that the host's kernel sent.
    #[serde(default)]
    pub kernel_tx_frames: u64,
    /// Frames that went to the host's kernel.
    #[serde(default)]
    pub kernel_rx_frames: u64,
}

impl Host {
    fn new(addresses: &[IpAddr], slots: usize, receive_buffer_bytes: usize) -> Self {
        Host {
            // Random; the order of a hash table affects no reproducible run.
            eswitch: EmbeddedSwitch::new(addresses, RandomState::new().hash_one(addresses)),
            pool: FramePool::new(),
            waiting: (0..=slots).map(|_| Waiting::default()).collect(),
            backlog: 0,
            receive_buffer_bytes,
            counters: HostCounters::default(),
        }
    }

    /// Program slots.
    fn slots(&self) -> usize {
        self.waiting.len() - 1
    }

    /// Queues a frame.
    fn wait(&mut self, queue: usize, frame: &Frame<'_>) {
        let waiting = &mut self.waiting[queue];
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
        let slots = self.slots();
        // All programs share one copy.
        let held = self.pool.hold(frame);
        for slot in self.eswitch.attached().filter(|slot| *slot < slots) {
            self.counters.rx_frames += 1;
            self.wait(slot, &held.as_frame());
        }
    }

    /// Sends a frame with `direct` if the queue is empty, and otherwise queues it.
    fn pass(&mut self, queue: usize, frame: &Frame<'_>, direct: &mut impl FnMut(usize) -> bool) {
        if !self.waiting[queue].frames.is_empty() || !direct(queue) {
            self.wait(queue, frame);
        }
    }

    /// Delivers a frame along `route`, which stays inside the host. `direct` sends it to the side
    /// of a queue, if there is room.
    fn deliver(&mut self, route: Route, frame: &Frame<'_>, direct: &mut impl FnMut(usize) -> bool) {
        match route {
            Route::Function(slot) if slot < self.slots() => {
                self.counters.rx_frames += 1;
                self.pass(slot, frame, direct);
            }
            Route::Kernel => {
                self.counters.kernel_rx_frames += 1;
                self.pass(self.slots(), frame, direct);
            }
            Route::AllFunctions | Route::WireAndAllFunctions => self.deliver_to_all(frame),
            Route::Drop(DropReason::NotRoce) => self.counters.drops_not_roce += 1,
            Route::Drop(DropReason::RefusedByOthersYet) => {}
            Route::Wire | Route::Function(_) | Route::Drop(DropReason::NoFunction) => {
                self.counters.drops_no_function += 1;
            }
        }
    }

    /// Sends waiting frames, as far as programs and kernel accept them.
    fn drain(&mut self, side_of: impl Fn(usize) -> Side, out: &mut dyn Transmit) {
        if self.backlog == 0 {
            return;
        }
        for (queue, waiting) in self.waiting.iter_mut().enumerate() {
            if waiting.frames.is_empty() {
                continue;
            }
            let side = side_of(queue);
            let mut room = out.room(side);
            while room > 0 {
                let Some(frame) = waiting.frames.pop_front() else { break };
                waiting.bytes -= frame.footprint();
                out.transmit(side, &frame.as_frame());
                room -= 1;
            }
            if waiting.frames.is_empty() {
                self.backlog -= 1;
            }
        }
    }
}

impl<F: Node> LabNode<F> {
    /// A lab around `fabric`, without programs and kernels. The hosts' devices have the addresses
    /// `hosts`. Up to `receive_buffer_bytes` of frames wait for each program, which may not be
    /// scheduled for a while; further frames are dropped.
    pub fn new(
        hosts: impl Iterator<Item = [IpAddr; 3]>,
        sides: Sides,
        fabric: F,
        receive_buffer_bytes: usize,
    ) -> Self {
        let hosts = hosts
            .map(|addresses| Host::new(&addresses, sides.slots(), receive_buffer_bytes))
            .collect();
        LabNode { hosts, sides, fabric }
    }

    /// The numbering of its sides.
    pub fn sides(&self) -> Sides {
        self.sides
    }

    /// Gives `host` a kernel side, at [`Sides::of_kernel`].
    pub fn add_kernel(&mut self, host: HostName) {
        self.hosts[host.index()].eswitch.set_kernel(true);
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

    /// Frames that wait for programs and kernel of `host`.
    pub fn waiting(&self, host: HostName) -> usize {
        self.hosts[host.index()].waiting.iter().map(|waiting| waiting.frames.len()).sum()
    }
}

/// Sink of the fabric's frames: each side leads to a host, whose embedded switch knows the program,
/// or the kernel.
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
        host.deliver(route, frame, &mut |queue| {
            let side = sides.of_queue(name, queue);
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
        let (name, occupant) = self.sides.at(side);
        let host = &mut self.hosts[name.index()];
        let route = match occupant {
            Occupant::Program(slot) => {
                // A program that sends is attached, even if the next check of its port is still to
                // come.
                host.eswitch.set_attached(slot, true);
                host.counters.tx_frames += 1;
                host.eswitch.from_function(slot, frame)
            }
            Occupant::Kernel => {
                host.counters.kernel_tx_frames += 1;
                host.eswitch.from_kernel(frame)
            }
        };
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
            let name = HostName::of_index(index);
            host.drain(|queue| sides.of_queue(name, queue), out);
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
        let addresses =
            |host: HostName| [host.ip().into(), host.ipv6().into(), host.link_local().into()];
        let hosts = [HostName::A, HostName::B].map(addresses);
        let link = Link::new(LinkConfig::default()).unwrap();
        LabNode::new(hosts.into_iter(), Sides::new(2, 4), link, 1 << 20)
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
    fn sides_and_occupants_correspond() {
        let sides = Sides::new(26, 4);
        let host = HostName::of_index(25);
        assert_eq!((sides.of(host, 3), sides.of_kernel(host)), (103, 129));
        assert_eq!(sides.at(103), (host, Occupant::Program(3)));
        assert_eq!(sides.at(129), (host, Occupant::Kernel));
        assert_eq!(sides.at(104), (HostName::A, Occupant::Kernel));
    }

    /// An ARP request, or any other frame that is not IP, from and to anybody.
    fn send_arp(lab: &mut LabNode<Link>, side: Side) {
        let mut arp = [0xff; 60];
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        lab.handle_frame(Instant::ZERO, side, &Frame::opaque(&arp));
    }

    #[test]
    fn kernels_reach_each_other_and_no_program() {
        let mut lab = lab();
        lab.set_attached(HostName::B, 0, true);
        let [a, b] = [HostName::A, HostName::B].map(|host| lab.sides().of_kernel(host));
        send_arp(&mut lab, a);
        assert!(reached(&mut lab).is_empty(), "nobody is there");
        assert_eq!(lab.counters(HostName::B).drops_not_roce, 1);
        lab.add_kernel(HostName::A);
        lab.add_kernel(HostName::B);
        send_arp(&mut lab, a);
        assert_eq!(reached(&mut lab), [b]);
        send_arp(&mut lab, b);
        assert_eq!(reached(&mut lab), [a]);
        let [of_a, of_b] = [HostName::A, HostName::B].map(|host| lab.counters(host));
        assert_eq!((of_a.kernel_tx_frames, of_a.kernel_rx_frames), (2, 1));
        assert_eq!((of_b.kernel_tx_frames, of_b.kernel_rx_frames), (1, 1));
        assert_eq!((of_a.tx_frames, of_b.rx_frames), (0, 0));
    }

    /// Room for nothing at one side.
    struct Full(Side);

    impl Transmit for Full {
        fn room(&mut self, side: Side) -> usize {
            if side == self.0 { 0 } else { 64 }
        }
        fn transmit(&mut self, side: Side, _: &Frame<'_>) {
            assert_ne!(side, self.0, "there is no room");
        }
    }

    #[test]
    fn frames_wait_for_a_kernel_without_room_in_their_order_and_number() {
        let mut lab = lab();
        lab.add_kernel(HostName::B);
        let [a, b] = [HostName::A, HostName::B].map(|host| lab.sides().of_kernel(host));
        for _ in 0..3 {
            send_arp(&mut lab, a);
        }
        lab.poll_transmit(Instant::ZERO, &mut Full(b));
        assert_eq!(lab.waiting(HostName::B), 3);
        assert_eq!(reached(&mut lab), [b, b, b]);
        assert_eq!(lab.waiting(HostName::B), 0);
    }

    #[test]
    fn roce_of_a_kernel_reaches_the_program_of_its_peer() {
        let mut lab = lab();
        lab.add_kernel(HostName::A);
        lab.add_kernel(HostName::B);
        lab.set_attached(HostName::B, 3, true);
        let kernel = lab.sides().of_kernel(HostName::A);
        send(&mut lab, kernel, HostName::B.ip(), 3 << 18 | 20);
        assert_eq!(reached(&mut lab), [7]);
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
