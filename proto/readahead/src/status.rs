//! Status of a connection whose data is read ahead.

use crate::Protocol;
use longhaul_units::Qpn;
use std::net::IpAddr;

/// A snapshot of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionStatus {
    /// Its protocol.
    pub protocol: Protocol,
    /// The end that sends commands.
    pub initiator: IpAddr,
    /// Its QP.
    pub initiator_qpn: Qpn,
    /// The end that READs the announced memory.
    pub target: IpAddr,
    /// Its QP.
    pub target_qpn: Qpn,
    /// The initiator is at this box's site; otherwise the target is.
    pub initiator_is_on_lan: bool,
    /// Both boxes read ahead for it.
    pub is_ready: bool,
    /// Fetches at the initiator's NIC, or READs of the target being answered.
    pub under_way: usize,
    /// Fetched bytes that wait for the target.
    pub held_bytes: u64,
    /// Offset of the NIC's PSNs from those on the path.
    pub shift: u64,
}
