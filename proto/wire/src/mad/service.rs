//! Service ids of RDMA-CM, and its header in private data.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Service ids of the RDMA connection manager: a port space and a port.
pub struct ServiceId;

impl ServiceId {
    /// Port space of connections, `RDMA_PS_TCP`.
    pub const TCP: u16 = 0x0106;
    /// Port space of datagrams, `RDMA_PS_UDP`.
    pub const UDP: u16 = 0x0111;
    /// Port space of any transport, `RDMA_PS_IB`.
    pub const IB: u16 = 0x013f;
    /// Port space of IP over InfiniBand, `RDMA_PS_IPOIB`.
    pub const IPOIB: u16 = 0x0002;

    /// The service id of `port` in port space `space`.
    pub const fn of(space: u16, port: u16) -> u64 {
        (space as u64) << 16 | port as u64
    }

    /// The service id of connections to `port` (`RDMA_PS_TCP`).
    pub const fn tcp(port: u16) -> u64 {
        Self::of(Self::TCP, port)
    }

    /// The service id of datagrams to `port` (`RDMA_PS_UDP`).
    pub const fn udp(port: u16) -> u64 {
        Self::of(Self::UDP, port)
    }

    /// The service id of `port` in the port space of any transport (`RDMA_PS_IB`).
    pub const fn ib(port: u16) -> u64 {
        Self::of(Self::IB, port)
    }

    /// The service id of `port` in the port space of IP over InfiniBand (`RDMA_PS_IPOIB`).
    pub const fn ipoib(port: u16) -> u64 {
        Self::of(Self::IPOIB, port)
    }

    /// Port space and port; `None` for ids outside the RDMA connection manager's range.
    pub const fn parts(service_id: u64) -> Option<(u16, u16)> {
        if service_id >> 32 != 0 {
            return None;
        }
        Some(((service_id >> 16) as u16, service_id as u16))
    }

    /// `true` if private data begins with an [`RdmaCmHeader`]: in every port space of the RDMA
    /// connection manager. Linux omits it only between InfiniBand addresses, which RoCE does not
    /// have.
    pub const fn has_header(service_id: u64) -> bool {
        matches!(Self::parts(service_id), Some((Self::TCP | Self::UDP | Self::IB | Self::IPOIB, _)))
    }

    /// `true` if connections (REQ) can be requested: in all but the UDP and IPoIB port spaces.
    pub const fn has_connections(service_id: u64) -> bool {
        !matches!(Self::parts(service_id), Some((Self::UDP | Self::IPOIB, _)))
    }

    /// `true` if a datagram QP can be requested (SIDR_REQ): in all but the TCP port space.
    pub const fn has_datagrams(service_id: u64) -> bool {
        !matches!(Self::parts(service_id), Some((Self::TCP, _)))
    }
}

/// Header of the RDMA connection manager in front of a program's private data in REQ and SIDR_REQ:
/// 36 bytes.
///
/// Source: IBTA, volume 1, annex A11 (RDMA IP CM service).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RdmaCmHeader {
    /// Sender's port in the port space of the service id.
    pub source_port: u16,
    /// Sender's address, of the same family as the destination.
    pub source: IpAddr,
    /// Receiver's address; its port is in the service id.
    pub destination: IpAddr,
}

impl RdmaCmHeader {
    /// Length in bytes.
    pub const LEN: usize = 36;
    /// Private data that a REQ leaves to the program behind the header, in bytes.
    pub const USER_LEN: usize = super::Req::PRIVATE_LEN - Self::LEN;
    /// Private data that a SIDR_REQ leaves to the program behind the header, in bytes.
    pub const SIDR_USER_LEN: usize = super::SidrReq::PRIVATE_LEN - Self::LEN;

    /// Reads the header; `None` if the data is too short, the version is not 0 or the IP version is
    /// neither 4 nor 6.
    pub fn read(private_data: &[u8]) -> Option<Self> {
        let head: &[u8; Self::LEN] = private_data.first_chunk()?;
        if head[0] >> 4 != 0 {
            return None;
        }
        let mut source = [0; 16];
        let mut destination = [0; 16];
        source.copy_from_slice(&head[4..20]);
        destination.copy_from_slice(&head[20..36]);
        let address = |b: [u8; 16]| match head[1] >> 4 {
            4 => Some(IpAddr::V4(Ipv4Addr::new(b[12], b[13], b[14], b[15]))),
            6 => Some(IpAddr::V6(Ipv6Addr::from(b))),
            _ => None,
        };
        Some(RdmaCmHeader {
            source_port: u16::from_be_bytes([head[2], head[3]]),
            source: address(source)?,
            destination: address(destination)?,
        })
    }

    /// The 36 bytes. If the families differ, both addresses are written as IPv6, IPv4 ones mapped.
    pub fn write(&self) -> [u8; Self::LEN] {
        let mut head = [0; Self::LEN];
        [head[2], head[3]] = self.source_port.to_be_bytes();
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                head[1] = 4 << 4;
                head[16..20].copy_from_slice(&source.octets());
                head[32..36].copy_from_slice(&destination.octets());
            }
            (source, destination) => {
                head[1] = 6 << 4;
                head[4..20].copy_from_slice(&gid_of_ip(source));
                head[20..36].copy_from_slice(&gid_of_ip(destination));
            }
        }
        head
    }

    /// Returns header and a program's private data, zero-padded: the private data of a REQ in the
    /// TCP port space.
    ///
    /// `None` when `user` is longer than [`RdmaCmHeader::USER_LEN`].
    pub fn with_user_data(&self, user: &[u8]) -> Option<[u8; super::Req::PRIVATE_LEN]> {
        self.before(user)
    }

    /// Returns header and a program's private data, zero-padded: the private data of a SIDR_REQ in
    /// the UDP and IPoIB port spaces.
    ///
    /// `None` when `user` is longer than [`RdmaCmHeader::SIDR_USER_LEN`].
    pub fn with_sidr_user_data(&self, user: &[u8]) -> Option<[u8; super::SidrReq::PRIVATE_LEN]> {
        self.before(user)
    }

    /// `LEN_ALL >= RdmaCmHeader::LEN`.
    fn before<const LEN_ALL: usize>(&self, user: &[u8]) -> Option<[u8; LEN_ALL]> {
        let mut data = [0; LEN_ALL];
        data[..Self::LEN].copy_from_slice(&self.write());
        data[Self::LEN..].get_mut(..user.len())?.copy_from_slice(user);
        Some(data)
    }
}

/// The GID of an address: an IPv4 address as ::ffff:a.b.c.d, an IPv6 address as it is.
pub const fn gid_of_ip(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The address of a GID, the reverse of [`gid_of_ip`].
pub fn ip_of_gid(gid: [u8; 16]) -> IpAddr {
    let ip = Ipv6Addr::from(gid);
    match ip.to_ipv4_mapped() {
        Some(ip) => IpAddr::V4(ip),
        None => IpAddr::V6(ip),
    }
}
