//! The lab as one node: a host at each end, and whatever stands in the wire between them.

use super::dir::SLOTS;
use super::spec::HostName;
use longhaul_eswitch::{DropReason, EmbeddedSwitch, Route};
use longhaul_node::{Deadline, Frame, FrameBuf, FramePool, Node, Side, Transmit};
use longhaul_units::Instant;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::net::IpAddr;

/// The side of the program in `slot` of `host`.
pub fn side_of(host: HostName, slot: usize) -> Side {
    host as usize * SLOTS + slot
}

/// The host and the slot of the program on `side`.
pub fn program_at(side: Side) -> (HostName, usize) {
    (HostName::ALL[side / SLOTS], side % SLOTS)
}

/// Two hosts, joined by `wire`, a node whose side 0 is toward host a and side 1 toward host b.
pub struct LabNode<W> {
    hosts: [Host; 2],
    pub wire: W,
}

/// A host's embedded switch and what waits for its programs.
struct Host {
    eswitch: EmbeddedSwitch,
    pool: FramePool,
    waiting: [VecDeque<FrameBuf>; SLOTS],
    waiting_bytes: [usize; SLOTS],
    /// Slots with something waiting.
    backlog: usize,
    receive_buffer_bytes: usize,
    counters: HostCounters,
}

/// What a host's switch did; counters run freely.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct HostCounters {
    /// Frames that programs sent.
    pub tx_frames: u64,
    /// Frames that went to programs.
    pub rx_frames: u64,
    /// Frames for numbers that no running program has.
    pub drops_no_function: u64,
    /// Frames that are not RoCEv2.
    pub drops_not_roce: u64,
    /// Frames for a program that takes none.
    pub drops_receive_buffer: u64,
}

impl Host {
    fn new(host: HostName, receive_buffer_bytes: usize) -> Self {
        Host {
            eswitch: EmbeddedSwitch::new(IpAddr::V4(host.ip())),
            pool: FramePool::new(),
            waiting: [const { VecDeque::new() }; SLOTS],
            waiting_bytes: [0; SLOTS],
            backlog: 0,
            receive_buffer_bytes,
            counters: HostCounters::default(),
        }
    }

    /// Queues a frame for the program in `slot`.
    fn wait(&mut self, slot: usize, frame: &Frame<'_>) {
        if self.waiting_bytes[slot] > self.receive_buffer_bytes {
            self.counters.drops_receive_buffer += 1;
            return;
        }
        let held = self.pool.hold(frame);
        if self.waiting[slot].is_empty() {
            self.backlog += 1;
        }
        self.waiting_bytes[slot] += held.footprint();
        self.waiting[slot].push_back(held);
    }

    /// Takes a frame along `route`, which stays inside the host.
    fn deliver(&mut self, route: Route, frame: &Frame<'_>, direct: &mut impl FnMut(usize) -> bool) {
        match route {
            Route::Function(slot) if slot < SLOTS => {
                self.counters.rx_frames += 1;
                if !self.waiting[slot].is_empty() || !direct(slot) {
                    self.wait(slot, frame);
                }
            }
            Route::AllFunctions => {
                for slot in self.eswitch.attached().filter(|slot| *slot < SLOTS) {
                    self.counters.rx_frames += 1;
                    self.wait(slot, frame);
                }
            }
            Route::Drop(DropReason::NotRoce) => self.counters.drops_not_roce += 1,
            Route::Drop(DropReason::RefusedByOthersYet) => {}
            Route::Wire | Route::Function(_) | Route::Drop(DropReason::NoFunction) => {
                self.counters.drops_no_function += 1;
            }
        }
    }

    /// Sends what waits, as far as the programs take it.
    fn drain(&mut self, first_side: Side, out: &mut dyn Transmit) {
        if self.backlog == 0 {
            return;
        }
        for slot in 0..SLOTS {
            let queue = &mut self.waiting[slot];
            if queue.is_empty() {
                continue;
            }
            let mut room = out.room(first_side + slot);
            while room > 0 {
                let Some(frame) = queue.pop_front() else { break };
                self.waiting_bytes[slot] -= frame.footprint();
                out.transmit(first_side + slot, &frame.as_frame());
                room -= 1;
            }
            if queue.is_empty() {
                self.backlog -= 1;
            }
        }
    }
}

impl<W: Node> LabNode<W> {
    /// A lab around `wire`, with no programs yet. Up to `receive_buffer_bytes` of frames wait for each program, which
    /// may be off its core for a while; further ones are dropped.
    pub fn new(wire: W, receive_buffer_bytes: usize) -> Self {
        LabNode { hosts: HostName::ALL.map(|host| Host::new(host, receive_buffer_bytes)), wire }
    }

    /// Tells the lab that a program runs in `slot` of `host`, or no longer does.
    pub fn set_attached(&mut self, host: HostName, slot: usize, attached: bool) {
        let host = &mut self.hosts[host as usize];
        if host.eswitch.is_attached(slot) == attached {
            return;
        }
        host.eswitch.set_attached(slot, attached);
        if !attached && !host.waiting[slot].is_empty() {
            // The next program in this slot is another one.
            host.waiting[slot].clear();
            host.waiting_bytes[slot] = 0;
            host.backlog -= 1;
        }
    }

    /// Counters of `host`.
    pub fn counters(&self, host: HostName) -> HostCounters {
        self.hosts[host as usize].counters
    }

    /// Programs attached to `host`.
    pub fn programs(&self, host: HostName) -> usize {
        self.hosts[host as usize].eswitch.attached().count()
    }

    /// Frames that wait for programs of `host`.
    pub fn waiting(&self, host: HostName) -> usize {
        self.hosts[host as usize].waiting.iter().map(VecDeque::len).sum()
    }
}

/// Takes what the wire sends: its side 0 and 1 lead to the hosts, whose switches know the program.
struct ToPrograms<'a> {
    hosts: &'a mut [Host; 2],
    out: &'a mut dyn Transmit,
}

impl Transmit for ToPrograms<'_> {
    /// A host's receive buffer takes what its programs do not.
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        let host = &mut self.hosts[side];
        let route = host.eswitch.from_wire(frame);
        let out = &mut *self.out;
        host.deliver(route, frame, &mut |slot| {
            let side = side * SLOTS + slot;
            let room = out.room(side) > 0;
            if room {
                out.transmit(side, frame);
            }
            room
        });
    }
}

impl<W: Node> Node for LabNode<W> {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        let (end, slot) = (side / SLOTS, side % SLOTS);
        let host = &mut self.hosts[end];
        // Who sends is there, even before anybody has looked at its port.
        host.eswitch.set_attached(slot, true);
        host.counters.tx_frames += 1;
        match host.eswitch.from_function(frame) {
            Route::Wire => self.wire.handle_frame(now, end, frame),
            inside => host.deliver(inside, frame, &mut |_| false),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.wire.handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        for (end, host) in self.hosts.iter_mut().enumerate() {
            host.drain(end * SLOTS, out);
        }
        self.wire.poll_transmit(now, &mut ToPrograms { hosts: &mut self.hosts, out });
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        self.wire.poll_timeout()
    }
}
