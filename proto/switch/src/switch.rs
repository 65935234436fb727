//! The switch: learns addresses, queues at outputs, marks and pauses.

use crate::addresses::Addresses;
use crate::config::{PORTS_MAX, SwitchConfig, SwitchError};
use crate::counters::{DropReason, PortCounters};
use crate::pausable::Pausable;
use longhaul_link::Direction;
use longhaul_node::{Deadline, Frame, FramePool, Node, Side, Transmit};
use longhaul_units::{Instant, Rng, SplitMix64};
use longhaul_wire::{MacAddr, Pause};

/// See the crate's documentation. Port `i` is the node's side `i`.
///
/// `now` must never decrease from one call to the next. A frame whose output has no room stays, in
/// order, until there is room; the queue behind it fills as at a rate of zero.
pub struct Switch {
    config: SwitchConfig,
    addresses: Addresses,
    ports: Vec<PortCounters>,
    outputs: Outputs,
    /// One bit per port with queued frames, frames in flight, or a pause frame to send.
    occupied: u64,
    /// Holds frames that leave on several ports.
    pool: FramePool,
}

/// Outputs by port.
enum Outputs {
    Plain(Vec<Direction>),
    Pausable(Box<Pausable>),
}

/// The bits of `set`, ascending.
fn members(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(lowest)
    })
}

/// True for addresses of link-local protocols, which a bridge never forwards. Source: IEEE 802.1Q,
/// table 8-1.
fn is_link_local(address: MacAddr) -> bool {
    matches!(address.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
}

fn is_group(address: MacAddr) -> bool {
    address.0[0] & 1 != 0
}

/// Destination and source address.
#[inline]
fn addresses_of(head: &[u8]) -> Option<(MacAddr, MacAddr)> {
    let h = head.first_chunk::<14>()?;
    Some((
        MacAddr([h[0], h[1], h[2], h[3], h[4], h[5]]),
        MacAddr([h[6], h[7], h[8], h[9], h[10], h[11]]),
    ))
}

impl Switch {
    /// Creates a switch without addresses and frames.
    ///
    /// # Errors
    /// [`SwitchError::Ports`], [`SwitchError::Output`] and [`SwitchError::Pfc`].
    pub fn new(config: SwitchConfig) -> Result<Self, SwitchError> {
        if !(2..=PORTS_MAX).contains(&config.ports) {
            return Err(SwitchError::Ports { ports: config.ports });
        }
        let mut seeds = SplitMix64::new(config.seed);
        let addresses = Addresses::new(config.addresses_max, config.address_age, seeds.next_u64());
        let seeds: Vec<u64> = (0..config.ports).map(|_| seeds.next_u64()).collect();
        let outputs = match &config.pfc {
            None => {
                let of = |(port, seed)| Direction::new(&config.output(port), 0, seed);
                let outputs = seeds.into_iter().enumerate().map(of);
                Outputs::Plain(outputs.collect::<Result<_, _>>()?)
            }
            Some(pfc) => {
                if let Some(fault) = pfc.fault(config.ports) {
                    return Err(fault.into());
                }
                Outputs::Pausable(Box::new(Pausable::new(&config, pfc, &seeds)?))
            }
        };
        Ok(Switch {
            addresses,
            ports: vec![PortCounters::default(); config.ports],
            outputs,
            occupied: 0,
            pool: FramePool::new(),
            config,
        })
    }

    /// Declares that `address` is behind `port`, whatever the source addresses of frames show.
    ///
    /// # Errors
    /// [`SwitchError::NoPort`], [`SwitchError::GroupAddress`], [`SwitchError::TableFull`].
    pub fn add_static(&mut self, address: MacAddr, port: Side) -> Result<(), SwitchError> {
        if port >= self.config.ports {
            return Err(SwitchError::NoPort { port, ports: self.config.ports });
        }
        if is_group(address) {
            return Err(SwitchError::GroupAddress);
        }
        match self.addresses.declare(address, port) {
            true => Ok(()),
            false => Err(SwitchError::TableFull { addresses_max: self.config.addresses_max }),
        }
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// Number of addresses, static and learnt, including aged ones that are not yet removed.
    pub fn addresses(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the counters of `port`.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn counters(&self, port: Side) -> PortCounters {
        let (output, pause) = match &self.outputs {
            Outputs::Plain(outputs) => (outputs[port].counters(), Default::default()),
            Outputs::Pausable(outputs) => outputs.counters(port),
        };
        PortCounters { output, pause, ..self.ports[port] }
    }

    /// Sends a frame to the outputs of its destination.
    #[inline]
    fn forward(&mut self, now: Instant, side: Side, frame: &Frame<'_>) -> Result<(), DropReason> {
        let (destination, source) = addresses_of(frame.head).ok_or(DropReason::Runt)?;
        if !frame.fits_pool() {
            return Err(DropReason::TooLong);
        }
        if is_group(source) {
            return Err(DropReason::GroupSource);
        }
        if is_link_local(destination) {
            return self.handle_link_local(now, side, frame);
        }
        if !self.addresses.learn(now, source, side) {
            self.ports[side].unlearnt_frames += 1;
        }
        let known =
            if is_group(destination) { None } else { self.addresses.port_of(now, destination) };
        match known {
            Some(port) if port == side => Err(DropReason::SamePort),
            Some(port) => self.enter(now, side, port, frame),
            None => {
                self.flood(now, side, frame);
                Ok(())
            }
        }
    }

    #[inline]
    fn enter(
        &mut self,
        now: Instant,
        side: Side,
        port: Side,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        self.occupied |= 1 << port;
        match &mut self.outputs {
            Outputs::Plain(outputs) => outputs[port].enter(now, frame),
            Outputs::Pausable(outputs) => {
                // Its input may have to send a pause frame.
                self.occupied |= 1 << side;
                if !outputs.enter(now, side, port, frame) {
                    return Err(DropReason::HeadroomFull);
                }
            }
        }
        Ok(())
    }

    /// Handles a link-local frame, which is valid on one link only and never forwarded.
    #[cold]
    fn handle_link_local(
        &mut self,
        now: Instant,
        side: Side,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        match (&mut self.outputs, Pause::parse(frame.head)) {
            (Outputs::Pausable(outputs), Some(pause)) => {
                outputs.receive_pause(now, side, &pause);
                self.occupied |= 1 << side;
                Ok(())
            }
            _ => Err(DropReason::LinkLocal),
        }
    }

    /// Sends a frame to every port but `side`.
    fn flood(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.ports[side].flooded_frames += 1;
        let held = self.pool.hold(frame);
        for port in (0..self.config.ports).filter(|port| *port != side) {
            if let Err(reason) = self.enter(now, side, port, &held.as_frame()) {
                self.ports[side].drops.count(reason);
            }
        }
    }
}

impl Node for Switch {
    #[inline]
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        let port = &mut self.ports[side];
        port.received_frames += 1;
        port.received_bytes += frame.len() as u64;
        if let Err(reason) = self.forward(now, side, frame) {
            self.ports[side].drops.count(reason);
        }
    }

    /// Does nothing: a due frame leaves by [`Node::poll_transmit`].
    fn handle_timeout(&mut self, _now: Instant) {}

    #[inline]
    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        match &mut self.outputs {
            Outputs::Plain(outputs) => {
                for port in members(self.occupied) {
                    let output = &mut outputs[port];
                    output.leave(now, port, out);
                    if output.is_empty() {
                        self.occupied &= !(1 << port);
                    }
                }
            }
            Outputs::Pausable(outputs) => {
                for port in members(self.occupied) {
                    self.occupied |= outputs.leave(now, port, out);
                    if !outputs.has_work(port) {
                        self.occupied &= !(1 << port);
                    }
                }
            }
        }
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Deadline> {
        match &self.outputs {
            Outputs::Plain(outputs) => {
                let due =
                    members(self.occupied).filter_map(|port| outputs[port].next_due()).min()?;
                Some(Deadline { at: due, reason: "switch output" })
            }
            Outputs::Pausable(outputs) => members(self.occupied)
                .map(|port| outputs.deadline(port))
                .fold(None, Deadline::earliest),
        }
    }
}
