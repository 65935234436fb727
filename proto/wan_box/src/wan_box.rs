//! The parts of a box in series, as one node.

use crate::config::{Config, ConfigError, Halves, Whole};
use longhaul_accel::Accelerator;
use longhaul_node::{Chain, Deadline, Frame, Mirrored, Node, Side, Transmit};
use longhaul_readahead::ReadAhead;
use longhaul_seal::{Seal, Sealed};
use longhaul_units::Instant;
use longhaul_wan::Transport;

/// A box: side 0 is its LAN, the sides from 1 on are the paths of the WAN.
///
/// From the LAN to the WAN: read-ahead, if configured; the near half, for this site's requesters;
/// and in a whole box the mirrored far half, for this site's responders, and the transport, with
/// its paths sealed if the boxes have keys.
pub struct WanBox {
    row: Chain<ReadAhead, Chain<Accelerator, BehindNear>>,
}

type BehindNear = Chain<Mirrored<Accelerator>, Sealed<Transport>>;

impl WanBox {
    /// Creates a box of these parts.
    ///
    /// # Errors
    /// If the configuration of a part is invalid.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let near = Accelerator::new(config.near)?;
        let Some(whole) = config.whole else {
            return Ok(WanBox { row: Chain::new(None, Some(Chain::new(Some(near), None))) });
        };
        let Whole { far, transport, seal, read_ahead } = *whole;
        let seal = seal.map(Seal::new).transpose().map_err(ConfigError::Seal)?;
        let transport = Transport::new(transport).map_err(ConfigError::Transport)?;
        let behind =
            Chain::new(Some(Mirrored(Accelerator::new(far)?)), Some(Sealed::new(transport, seal)));
        let read_ahead =
            read_ahead.map(ReadAhead::new).transpose().map_err(ConfigError::ReadAhead)?;
        Ok(WanBox { row: Chain::new(read_ahead, Some(Chain::new(Some(near), Some(behind)))) })
    }

    fn halves(&self) -> &Chain<Accelerator, BehindNear> {
        self.row.right().expect("every box has a near half")
    }

    fn halves_mut(&mut self) -> &mut Chain<Accelerator, BehindNear> {
        self.row.right_mut().expect("every box has a near half")
    }

    /// The near half, for this site's requesters.
    pub fn near(&self) -> &Accelerator {
        self.halves().left().expect("every box has a near half")
    }

    /// The far half, for this site's responders.
    pub fn far(&self) -> Option<&Accelerator> {
        Some(&self.halves().right()?.left()?.0)
    }

    /// The transport to the far box, in a whole box.
    pub fn transport(&self) -> Option<&Transport> {
        Some(self.halves().right()?.right()?.node())
    }

    /// The seal of the transport's datagrams, if the boxes have keys.
    pub fn seal(&self) -> Option<&Seal> {
        self.halves().right()?.right()?.seal()
    }

    /// The read-ahead, if configured.
    pub fn read_ahead(&self) -> Option<&ReadAhead> {
        self.row.left()
    }

    fn near_mut(&mut self) -> &mut Accelerator {
        self.halves_mut().left_mut().expect("every box has a near half")
    }

    fn far_mut(&mut self) -> Option<&mut Accelerator> {
        Some(&mut self.halves_mut().right_mut()?.left_mut()?.0)
    }

    /// Applies other configurations to both halves, or changes nothing on an error. Seeds are kept.
    ///
    /// # Errors
    /// If a field differs that cannot change while the box runs.
    pub fn reconfigure(&mut self, to: &Halves) -> Result<(), longhaul_accel::ConfigError> {
        let with_seed = |half: &Accelerator, config: &longhaul_accel::Config| {
            longhaul_accel::Config { seed: half.config().seed, ..config.clone() }
        };
        let near = with_seed(self.near(), &to.near);
        self.near().config().check_change(&near)?;
        let far = self.far().zip(to.far.as_ref()).map(|(half, config)| with_seed(half, config));
        if let (Some(half), Some(config)) = (self.far(), &far) {
            half.config().check_change(config)?;
        }
        self.near_mut().reconfigure(near)?;
        if let (Some(half), Some(config)) = (self.far_mut(), far) {
            half.reconfigure(config)?;
        }
        Ok(())
    }

    /// Starts or ends draining of the box's flows: see [`Accelerator::set_draining`].
    pub fn set_draining(&mut self, now: Instant, is_draining: bool) {
        if let Some(read_ahead) = self.row.left_mut() {
            read_ahead.set_draining(is_draining);
        }
        self.near_mut().set_draining(now, is_draining);
        if let Some(far) = self.far_mut() {
            far.set_draining(now, is_draining);
        }
    }
}

impl Node for WanBox {
    #[inline]
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.row.handle_frame(now, side, frame);
    }

    #[inline]
    fn handle_timeout(&mut self, now: Instant) {
        self.row.handle_timeout(now);
    }

    #[inline]
    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.row.poll_transmit(now, out);
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Deadline> {
        self.row.poll_timeout()
    }

    #[inline]
    fn intake(&self, side: Side) -> usize {
        self.row.intake(side)
    }

    #[inline]
    fn other_intake(&self, side: Side) -> usize {
        self.row.other_intake(side)
    }
}
