//! Per-flow bookkeeping of the accelerator.

use longhaul_units::Instant;

/// Where a flow is queued, and whether it is about to end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bookkeeping {
    /// It is processed at the end of the batch.
    pub(crate) is_touched: bool,
    pub(crate) in_lan_ring: bool,
    pub(crate) in_wan_ring: bool,
    /// Time for which its timer is armed.
    pub(crate) armed: Option<Instant>,
    /// It has received a packet since the eviction scan last examined it.
    pub(crate) is_used: bool,
    /// Its requester disconnects, and messages of the connection manager may wait for its delivery.
    pub(crate) is_departing: bool,
    /// It is removed once its store is delivered.
    pub(crate) is_closing: bool,
}
