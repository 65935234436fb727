//! A whole box: both accelerators and the WAN transport behind them, as on real ports.

use crate::oracle::Watched;
use longhaul_accel::Accelerator;
use longhaul_node::{Chain, Mirrored};
use longhaul_wan::Transport;

/// Side 0 is the LAN, sides from 1 on are the WAN's paths: the near accelerator, the far one turned round, the transport.
pub(crate) type WanBox = Chain<Watched, Chain<Mirrored<Accelerator>, Transport>>;

/// What a box is made of.
#[derive(Clone, Debug)]
pub struct WanBoxPlan {
    /// For the requesters on its LAN.
    pub near: longhaul_accel::Config,
    /// For the responders on its LAN; its LAN side is that of the WAN.
    pub far: longhaul_accel::Config,
    /// Between these and the WAN.
    pub transport: longhaul_wan::Config,
}

/// The three parts of a box.
pub(crate) struct Parts<'a> {
    pub near: &'a Watched,
    pub far: &'a Accelerator,
    pub transport: &'a Transport,
}

/// Joins the parts.
pub(crate) fn join(near: Watched, far: Accelerator, transport: Transport) -> WanBox {
    Chain::new(Some(near), Some(Chain::new(Some(Mirrored(far)), Some(transport))))
}

/// The parts of a box.
pub(crate) fn parts(whole: &WanBox) -> Option<Parts<'_>> {
    let behind = whole.right()?;
    Some(Parts { near: whole.left()?, far: &behind.left()?.0, transport: behind.right()? })
}
