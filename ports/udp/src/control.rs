//! Ancillary data and socket addresses in the kernel's layout.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::c_int;

/// Length of a `cmsghdr`: length, level, type. Its data follows without padding.
const HEADER: usize = size_of::<libc::cmsghdr>();
const LENGTH: usize = size_of::<usize>();
const INT: usize = size_of::<c_int>();
/// Space for three messages of up to eight bytes each, and a spare one.
const CAPACITY: usize = 4 * (HEADER + 8);

/// The ancillary data of one message.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Control {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Control {
    pub(crate) const EMPTY: Control = Control { bytes: [0; CAPACITY], len: 0 };

    /// Space for the kernel, in bytes.
    pub(crate) const CAPACITY: usize = CAPACITY;

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Bytes used.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    /// Appends a message of up to eight bytes; at most four fit.
    pub(crate) fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let message = &mut self.bytes[self.len..self.len + HEADER + 8];
        message[..LENGTH].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        message[HEADER - 2 * INT..HEADER - INT].copy_from_slice(&level.to_ne_bytes());
        message[HEADER - INT..HEADER].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER..HEADER + data.len()].copy_from_slice(data);
        message[HEADER + data.len()..].fill(0);
        self.len += HEADER + 8;
    }

    /// Calls `each` with level, type and data of each message in the first `len` bytes.
    pub(crate) fn read(&self, len: usize, mut each: impl FnMut(c_int, c_int, &[u8])) {
        let mut rest = &self.bytes[..len.min(CAPACITY)];
        while rest.len() >= HEADER {
            let mut length = [0; LENGTH];
            length.copy_from_slice(&rest[..LENGTH]);
            let length = usize::from_ne_bytes(length);
            let int = |at: usize| {
                c_int::from_ne_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]])
            };
            if length < HEADER || length > rest.len() {
                return;
            }
            each(int(HEADER - 2 * INT), int(HEADER - INT), &rest[HEADER..length]);
            rest = rest.get(length.next_multiple_of(LENGTH)..).unwrap_or_default();
        }
    }
}

/// A `sockaddr_in` or `sockaddr_in6`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct SocketAddress([u8; SocketAddress::CAPACITY]);

impl SocketAddress {
    /// Length of a `sockaddr_in6`, the longer one.
    pub(crate) const CAPACITY: usize = 28;

    pub(crate) const EMPTY: SocketAddress = SocketAddress([0; Self::CAPACITY]);

    pub(crate) fn new(ip: IpAddr, port: u16, scope_id: u32) -> Self {
        let mut this = Self::EMPTY;
        let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        this.0[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
        this.0[2..4].copy_from_slice(&port.to_be_bytes());
        match ip {
            IpAddr::V4(ip) => this.0[4..8].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => {
                this.0[8..24].copy_from_slice(&ip.octets());
                if ip.is_unicast_link_local() || ip.is_multicast() {
                    this.0[24..28].copy_from_slice(&scope_id.to_ne_bytes());
                }
            }
        }
        this
    }

    /// Length of the structure for this family.
    pub(crate) fn len(&self) -> usize {
        if self.is_ipv4() { 16 } else { Self::CAPACITY }
    }

    fn is_ipv4(&self) -> bool {
        libc::c_int::from(u16::from_ne_bytes([self.0[0], self.0[1]])) == libc::AF_INET
    }

    /// The IP address and port.
    pub(crate) fn read(&self) -> (IpAddr, u16) {
        let ip = if self.is_ipv4() {
            IpAddr::from(Ipv4Addr::from([4, 5, 6, 7].map(|at: usize| self.0[at])))
        } else {
            let mut octets = [0; 16];
            octets.copy_from_slice(&self.0[8..24]);
            IpAddr::from(Ipv6Addr::from(octets))
        };
        (ip, u16::from_be_bytes([self.0[2], self.0[3]]))
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_back_in_order() {
        let mut control = Control::EMPTY;
        control.push(0, 1, &7_i32.to_ne_bytes());
        control.push(17, 103, &1040_u16.to_ne_bytes());
        let mut found = Vec::new();
        control.read(control.len(), |level, kind, data| found.push((level, kind, data.to_vec())));
        let expected =
            vec![(0, 1, 7_i32.to_ne_bytes().to_vec()), (17, 103, 1040_u16.to_ne_bytes().to_vec())];
        assert_eq!(found, expected);
    }

    #[test]
    fn lengths_that_lie_end_the_list() {
        for length in [0_usize, 1, HEADER - 1, CAPACITY + 1, usize::MAX] {
            let mut control = Control::EMPTY;
            control.push(0, 1, &[1; 4]);
            control.bytes[..LENGTH].copy_from_slice(&length.to_ne_bytes());
            control.read(CAPACITY, |_, _, _| panic!("a message of {length} bytes"));
        }
    }

    #[test]
    fn addresses_read_back() {
        for ip in ["10.1.2.3", "::1", "fe80::1234"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(SocketAddress::new(ip, 4791, 3).read(), (ip, 4791));
        }
        let link_local = SocketAddress::new("fe80::1".parse().unwrap(), 1, 3);
        assert_eq!(link_local.0[24..28], 3_u32.to_ne_bytes());
        let global = SocketAddress::new("fd00::1".parse().unwrap(), 1, 3);
        assert_eq!(global.0[24..28], [0; 4]);
    }
}
