use crate::addresses::Addresses;
use crate::config::{PORTS_MAX, SwitchConfig, SwitchError};
use crate::counters::{DropReason, PortCounters};
use longhaul_link::{Direction, PAYLOAD_LEN_MAX};
use longhaul_node::{Deadline, Frame, FramePool, Node, Side, Transmit};
use longhaul_units::{Instant, Rng, SplitMix64};
use longhaul_wire::{HEAD_MAX, MacAddr};

/// See the crate's documentation. Port `i` is the node's side `i`.
///
/// Its `now` never decreases from one call to the next. A frame whose output has no room stays, in order, until there
/// is; behind it the queue fills as it would at a rate of zero.
pub struct Switch {
    config: SwitchConfig,
    addresses: Addresses,
    ports: Vec<PortCounters>,
    outputs: Vec<Direction>,
    /// A bit for each output with frames queued or under way.
    occupied: u64,
    /// Keeps what leaves by several ports.
    pool: FramePool,
}

/// The bits of `set`, ascending.
fn members(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(lowest)
    })
}

fn is_group(address: MacAddr) -> bool {
    address.0[0] & 1 != 0
}

/// Destination and source.
#[inline]
fn addresses_of(head: &[u8]) -> Option<(MacAddr, MacAddr)> {
    let h = head.first_chunk::<14>()?;
    Some((MacAddr([h[0], h[1], h[2], h[3], h[4], h[5]]), MacAddr([h[6], h[7], h[8], h[9], h[10], h[11]])))
}

impl Switch {
    /// A switch that knows no address and has no frame.
    ///
    /// # Errors
    /// [`SwitchError::Ports`] and [`SwitchError::Output`].
    pub fn new(config: SwitchConfig) -> Result<Self, SwitchError> {
        if !(2..=PORTS_MAX).contains(&config.ports) {
            return Err(SwitchError::Ports { ports: config.ports });
        }
        let mut seeds = SplitMix64::new(config.seed);
        let addresses = Addresses::new(config.addresses_max, config.address_age, seeds.next_u64());
        let link = config.output();
        let outputs =
            (0..config.ports).map(|_| Direction::new(&link, seeds.next_u64())).collect::<Result<_, _>>()?;
        Ok(Switch {
            addresses,
            ports: vec![PortCounters::default(); config.ports],
            outputs,
            occupied: 0,
            pool: FramePool::new(),
            config,
        })
    }

    /// Declares that `address` lives behind `port`, whatever frames from it say.
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

    /// The configuration in effect.
    pub fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// Addresses declared or learnt; learnt ones that have aged may be among them.
    pub fn addresses(&self) -> usize {
        self.addresses.len()
    }

    /// Counters of `port`.
    ///
    /// # Panics
    /// When there is no such port.
    pub fn counters(&self, port: Side) -> PortCounters {
        PortCounters { output: self.outputs[port].counters(), ..self.ports[port] }
    }

    /// Sends a frame to the outputs that its destination stands for.
    #[inline]
    fn forward(&mut self, now: Instant, side: Side, frame: &Frame<'_>) -> Result<(), DropReason> {
        let (destination, source) = addresses_of(frame.head).ok_or(DropReason::Runt)?;
        if frame.head.len() > HEAD_MAX || frame.payload.len() > PAYLOAD_LEN_MAX {
            return Err(DropReason::TooLong);
        }
        if is_group(source) {
            return Err(DropReason::GroupSource);
        }
        if !self.addresses.learn(now, source, side) {
            self.ports[side].unlearnt_frames += 1;
        }
        let known = if is_group(destination) { None } else { self.addresses.port_of(now, destination) };
        match known {
            Some(port) if port == side => Err(DropReason::SamePort),
            Some(port) => {
                self.occupied |= 1 << port;
                self.outputs[port].enter(now, frame);
                Ok(())
            }
            None => {
                self.flood(now, side, frame);
                Ok(())
            }
        }
    }

    /// Sends a frame to every port but `side`.
    fn flood(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.ports[side].flooded_frames += 1;
        let held = self.pool.hold(frame);
        for (port, output) in self.outputs.iter_mut().enumerate() {
            if port != side {
                self.occupied |= 1 << port;
                output.enter(now, &held.as_frame());
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

    /// Nothing changes by itself: a due frame leaves by [`Node::poll_transmit`].
    fn handle_timeout(&mut self, _now: Instant) {}

    #[inline]
    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        for port in members(self.occupied) {
            let output = &mut self.outputs[port];
            output.leave(now, port, out);
            if output.is_empty() {
                self.occupied &= !(1 << port);
            }
        }
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Deadline> {
        let due = members(self.occupied).filter_map(|port| self.outputs[port].next_due()).min()?;
        Some(Deadline { at: due, reason: "switch output" })
    }
}
