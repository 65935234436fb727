//! What an interface does to received frames on its own, turned off for as long as a port is there:
//! merging them (GRO, LRO), and taking VLAN tags off.

use std::io;
use std::os::fd::OwnedFd;

use crate::request;

const ETHTOOL_GET_FLAGS: u32 = 0x25;
const ETHTOOL_SET_FLAGS: u32 = 0x26;
const ETHTOOL_GET_GRO: u32 = 0x2b;
const ETHTOOL_SET_GRO: u32 = 0x2c;
const FLAG_TAGS_OFF: u32 = 1 << 8;
const FLAG_LRO: u32 = 1 << 15;

/// What is to be turned off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unwanted {
    /// Merging by the kernel (GRO).
    pub kernel_merging: bool,
    /// Merging by the device (LRO).
    pub device_merging: bool,
    /// The device takes VLAN tags off, and tells them beside the frame.
    pub tags_off: bool,
}

/// What was turned off, and is put back when this is dropped, as far as that is permitted then.
#[derive(Debug)]
pub struct ReceiveOffloads {
    carrier: OwnedFd,
    index: u32,
    had_gro: bool,
    /// `FLAG_`s that were on.
    had_flags: u32,
}

impl ReceiveOffloads {
    /// Turns off what is on of the `unwanted`, at the interface of this name and index in the
    /// network namespace of the calling thread. Without CAP_NET_ADMIN, or on a device that does not
    /// know of it, it stays as it is.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn turn_off(interface: &str, index: u32, unwanted: Unwanted) -> io::Result<Self> {
        let carrier = request::carrier()?;
        let had_gro = unwanted.kernel_merging
            && request::ethtool_get(&carrier, interface, ETHTOOL_GET_GRO).is_ok_and(|on| on != 0)
            && request::ethtool_set(&carrier, interface, ETHTOOL_SET_GRO, 0).is_ok();
        let flags = request::ethtool_get(&carrier, interface, ETHTOOL_GET_FLAGS).unwrap_or(0);
        let mut had_flags = 0;
        for (is_unwanted, flag) in
            [(unwanted.device_merging, FLAG_LRO), (unwanted.tags_off, FLAG_TAGS_OFF)]
        {
            // One by one: a device that refuses one may take the other.
            let without = flags & !had_flags & !flag;
            if is_unwanted
                && flags & flag != 0
                && request::ethtool_set(&carrier, interface, ETHTOOL_SET_FLAGS, without).is_ok()
            {
                had_flags |= flag;
            }
        }
        Ok(Self { carrier, index, had_gro, had_flags })
    }
}

impl Drop for ReceiveOffloads {
    fn drop(&mut self) {
        // As it is called by now, and not on another interface that got the name.
        let Ok(interface) = request::name(&self.carrier, self.index) else { return };
        if self.had_gro {
            let _ = request::ethtool_set(&self.carrier, &interface, ETHTOOL_SET_GRO, 1);
        }
        if self.had_flags != 0
            && let Ok(flags) = request::ethtool_get(&self.carrier, &interface, ETHTOOL_GET_FLAGS)
        {
            let flags = flags | self.had_flags;
            let _ = request::ethtool_set(&self.carrier, &interface, ETHTOOL_SET_FLAGS, flags);
        }
    }
}
