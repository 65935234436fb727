//! Receive offloads of an interface that a port turns off while it exists: merging (GRO, LRO), and
//! stripping of VLAN tags.

use std::io;
use std::os::fd::OwnedFd;

use crate::request;

const ETHTOOL_GET_FLAGS: u32 = 0x25;
const ETHTOOL_SET_FLAGS: u32 = 0x26;
const ETHTOOL_GET_GRO: u32 = 0x2b;
const ETHTOOL_SET_GRO: u32 = 0x2c;
const FLAG_TAGS_OFF: u32 = 1 << 8;
const FLAG_LRO: u32 = 1 << 15;

/// Offloads to turn off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unwanted {
    /// Merging by the kernel (GRO).
    pub kernel_merging: bool,
    /// Merging by the device (LRO).
    pub device_merging: bool,
    /// Stripping of VLAN tags into metadata by the device.
    pub tags_off: bool,
}

/// The offloads that were turned off. Dropping this restores them, if permitted, unless another
/// process is to do so.
#[derive(Debug)]
pub struct ReceiveOffloads {
    carrier: OwnedFd,
    index: u32,
    had_gro: bool,
    /// `FLAG_`s that were on.
    had_flags: u32,
    /// Dropping this restores them.
    is_in_charge: bool,
}

impl ReceiveOffloads {
    /// Turns off those of `unwanted` that are on, at the interface with this name and index in the
    /// network namespace of the calling thread. Without CAP_NET_ADMIN, or on a device that does not
    /// support a change, they stay on.
    ///
    /// # Errors
    /// If the process is out of descriptors.
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
            // One at a time: a device that refuses one change may accept the other.
            let without = flags & !had_flags & !flag;
            if is_unwanted
                && flags & flag != 0
                && request::ethtool_set(&carrier, interface, ETHTOOL_SET_FLAGS, without).is_ok()
            {
                had_flags |= flag;
            }
        }
        Ok(Self { carrier, index, had_gro, had_flags, is_in_charge: true })
    }

    /// For another process, which is to restore them in this one's place.
    #[must_use]
    pub fn numbers(&self) -> [u64; 2] {
        [self.had_gro.into(), self.had_flags.into()]
    }

    /// The offloads that another process turned off at the interface `index`, by its
    /// [numbers](Self::numbers). It restores them, until this one [takes
    /// charge](Self::take_charge).
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn adopt(index: u32, [had_gro, had_flags]: [u64; 2]) -> io::Result<Self> {
        let had_flags = had_flags as u32 & (FLAG_LRO | FLAG_TAGS_OFF);
        let (carrier, had_gro) = (request::carrier()?, had_gro != 0);
        Ok(Self { carrier, index, had_gro, had_flags, is_in_charge: false })
    }

    /// The other process leaves the offloads to this one.
    pub fn take_charge(&mut self) {
        self.is_in_charge = true;
    }

    /// Leaves the offloads as they are.
    pub fn leave(mut self) {
        self.is_in_charge = false;
    }
}

impl Drop for ReceiveOffloads {
    fn drop(&mut self) {
        if !self.is_in_charge {
            return;
        }
        // By its current name, and never on another interface that got the old name.
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
