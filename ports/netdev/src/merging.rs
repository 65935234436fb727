//! The interface's merging of received frames (GRO, LRO), turned off for as long as a port is there.

use std::os::fd::OwnedFd;

use crate::request;

const ETHTOOL_GET_FLAGS: u32 = 0x25;
const ETHTOOL_SET_FLAGS: u32 = 0x26;
const ETHTOOL_GET_GRO: u32 = 0x2b;
const ETHTOOL_SET_GRO: u32 = 0x2c;
const FLAG_LRO: u32 = 1 << 15;

/// What was turned off, and is put back in the end, as far as that is permitted then.
pub(crate) struct Merging {
    carrier: OwnedFd,
    index: u32,
    had_gro: bool,
    had_lro: bool,
}

impl Merging {
    /// Turns off what is on. Without the privilege, or on a device that does not know of it, it stays as it is.
    pub(crate) fn turn_off(carrier: OwnedFd, interface: &str, index: u32) -> Self {
        let had_gro = request::ethtool_get(&carrier, interface, ETHTOOL_GET_GRO).is_ok_and(|on| on != 0)
            && request::ethtool_set(&carrier, interface, ETHTOOL_SET_GRO, 0).is_ok();
        let flags = request::ethtool_get(&carrier, interface, ETHTOOL_GET_FLAGS).unwrap_or(0);
        let had_lro = flags & FLAG_LRO != 0
            && request::ethtool_set(&carrier, interface, ETHTOOL_SET_FLAGS, flags & !FLAG_LRO).is_ok();
        Self { carrier, index, had_gro, had_lro }
    }
}

impl Drop for Merging {
    fn drop(&mut self) {
        // As it is called by now, and not on another interface that got the name.
        let Ok(interface) = request::name(&self.carrier, self.index) else { return };
        if self.had_gro {
            let _ = request::ethtool_set(&self.carrier, &interface, ETHTOOL_SET_GRO, 1);
        }
        if self.had_lro
            && let Ok(flags) = request::ethtool_get(&self.carrier, &interface, ETHTOOL_GET_FLAGS)
        {
            let _ = request::ethtool_set(&self.carrier, &interface, ETHTOOL_SET_FLAGS, flags | FLAG_LRO);
        }
    }
}
