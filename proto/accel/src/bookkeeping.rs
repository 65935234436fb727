//! What an accelerator notes of a flow for itself.

use longhaul_units::Instant;

/// Where a flow is queued, and what becomes of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bookkeeping {
    /// It is processed at the end of the batch.
    pub(crate) is_touched: bool,
    pub(crate) in_lan_ring: bool,
    pub(crate) in_wan_ring: bool,
    /// What its timer is armed for.
    pub(crate) armed: Option<Instant>,
    /// A packet of it came since it was last looked at for eviction.
    pub(crate) is_used: bool,
    /// A DREQ waits for its store to be delivered.
    pub(crate) holds_dreq: bool,
    /// It is removed once its store is delivered.
    pub(crate) is_closing: bool,
}
